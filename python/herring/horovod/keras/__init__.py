"""Horovod's API for Keras 3, on any backend: ``import herring.horovod.keras as hvd``.

See docs/horovod.md.
"""

import herring.keras as _needed  # noqa: F401 - says what to install where Keras is missing
from herring.horovod.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from herring.horovod.common.exceptions import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
)
from herring.horovod.common.objects import (
    allgather_object,
    broadcast_object,
)
from herring.horovod.common.operators import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from herring.horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from herring.horovod.common.timeline import (
    start_timeline,
    stop_timeline,
)
from herring.horovod.keras import (
    callbacks,
    elastic,
)
from herring.horovod.keras.compression import (
    Compression,
)
from herring.horovod.keras.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    load_model,
)
from herring.horovod.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
