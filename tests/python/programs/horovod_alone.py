"""Imports Horovod by its own names, and prints a sum and the script's arguments."""

import sys

import horovod
import horovod.torch as hvd
import torch
from horovod.common import elastic
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import allreduce_async_, synchronize

hvd.init()
total = synchronize(allreduce_async_(torch.ones(1), op=hvd.Sum)).item()
assert hvd.HorovodInternalError is HorovodInternalError and horovod.__version__
for name in ("ray", "spark"):
    try:
        __import__(f"horovod.{name}")
    except ImportError as error:
        assert "is not supported" in str(error), error
    else:
        raise AssertionError(name)
assert hvd.elastic.run is elastic.run
print("total", total, sys.argv[1:])
