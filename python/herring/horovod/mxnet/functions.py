"""Copies parameters from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx

import herring.mxnet as plain
from herring.errors import InvalidArgumentError
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in
from herring.horovod.mxnet import mpi_ops

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any],
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies parameters from one rank to all ranks, in place (collective).

    A parameter that infers its shape from the first batch is broadcast when it is initialized.

    Args:
      params: `net.collect_params()`, or a dictionary of NDArrays. Ranks match parameters by the
        sorted order of their names.
      root_rank: the rank of the job whose values are copied.
      prefix: prefix of the operation names.
      process_set: the ranks that take part.

    Raises:
      InvalidArgumentError: `params` is something else, a parameter is not initialized, or
        `root_rank` is not in the process set.
      HorovodInternalError: shapes or dtypes differ between ranks, or a rank was lost or did not
        call in time.
    """
    if not isinstance(params, Mapping) and not hasattr(params, "keys"):
        raise InvalidArgumentError(
            "broadcast_parameters takes net.collect_params() or a dictionary of NDArrays, not "
            f"{type(params).__name__}"
        )
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    ready: dict[str, Any] = {}
    for key in sorted(params.keys()):
        one = params[key]
        if isinstance(one, mx.gluon.Parameter) and one._deferred_init:
            _broadcast_when_initialized(one, root_rank, f"{prefix or ''}{key}", process_set)
        else:
            ready[key] = one
    name = None if prefix is None else f"horovod.broadcast_parameters.{prefix}"
    with internal_errors():
        plain.broadcast_parameters(ready, root, name=name, group=group)


def _broadcast_when_initialized(
    parameter: Any, root_rank: int, name: str, process_set: ProcessSet
) -> None:
    initialize = parameter._init_impl

    def initialize_and_broadcast(*arguments: Any) -> None:
        initialize(*arguments)
        parameter._init_impl = initialize
        value = parameter.list_data()[0]
        parameter.set_data(mpi_ops.broadcast(value, root_rank, name, process_set=process_set))

    parameter._init_impl = initialize_and_broadcast
