"""Names that Horovod's modules for all frameworks share."""

from herring.horovod.common.basics import *  # noqa: F403
from herring.horovod.common.basics import __all__ as __all__
from herring.horovod.common.exceptions import HorovodInternalError
from herring.horovod.common.operators import Adasum, Average, Max, Min, Product, Sum
from herring.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from herring.horovod.common.timeline import start_timeline, stop_timeline

__all__ = [
    *__all__,
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "global_process_set",
    "remove_process_set",
    "start_timeline",
    "stop_timeline",
]
