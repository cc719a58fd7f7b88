"""Optimizers of Keras 3 that apply averages over all ranks, with Horovod's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

import herring
from herring.arrays.calls import name_of_next
from herring.arrays.gradients import GradientRounds
from herring.errors import InvalidArgumentError
from herring.horovod.common import rounds
from herring.horovod.common.compression import NoneCompressor, is_half
from herring.horovod.common.exceptions import NotSupportedError, internal_errors
from herring.horovod.common.local import Alone, LocalVariables, check_groups, variables_of
from herring.horovod.common.operators import (
    Adasum,
    Average,
    Sum,
    check_gradient_options,
    check_passes,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.keras.accumulation import distribute_accumulating
from herring.horovod.keras.compression import Compression
from herring.keras.averaging import make_averager as make_host_averager
from herring.keras.optimizer import distribute, require_plain

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "load_model"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer of Keras apply averages over all ranks.

    The optimizer itself is changed, and returned: its `apply` averages first, and all that goes by
    it. It is saved as what it was. With mixed_float16 wrap the outermost:
    ``DistributedOptimizer(LossScaleOptimizer(Adam()))``. A rank that is not in the process set
    steps by itself.

    Args:
      optimizer: a keras.optimizers.Optimizer.
      name: of its operations. None: optimizers are numbered in the order in which they are made,
        which must be the same on all ranks.
      device_dense: no meaning.
      device_sparse: no meaning.
      compression: `Compression.none`, `Compression.fp16` (float32 gradients travel between nodes
        in 16 bits and are added in 32), or on TensorFlow a class like these.
      sparse_as_dense: make tensors of tf.IndexedSlices; else all ranks get the slices of all.
      gradient_predivide_factor: no meaning: sums cannot overflow before they are divided.
      op: Average, Sum or, on TensorFlow, Adasum (combines gradients; a power of two of ranks).
      backward_passes_per_step: gradients of so many calls of `apply` add up before a step.
      average_aggregated_gradients: divide what has added up by their number.
      num_groups: older than `groups`.
      groups: checked, and without meaning: gradients share fusion buffers anyway.
      process_set: who takes part.
      scale_local_gradients: divide gradients of local variables by the number of ranks.

    Returns:
      `optimizer`, with ``register_local_var(variable)``: its gradient stays each rank's own.

    Raises:
      InvalidArgumentError: not an optimizer of Keras 3, or averaging already; an option that is
        impossible.
      NotSupportedError: an option that is there on TensorFlow only.
      ShutdownError: `init` was not called.
    """
    check_gradient_options(op, gradient_predivide_factor)
    check_passes(backward_passes_per_step)
    check_groups(groups, num_groups)
    require_plain(optimizer)
    herring.rank()  # a job is needed
    member = process_set.included() is not False
    local = LocalVariables(process_set, scales=scale_local_gradients)
    averager: Any = Alone()
    if member:
        group = group_of(process_set)
        name = name or name_of_next("horovod.DistributedOptimizer", group)
        found = _averager(name, op, compression, sparse_as_dense, process_set)
        averager = _Averaging(found, local)
    if backward_passes_per_step == 1:
        distribute(optimizer, averager)
    else:
        distribute_accumulating(
            optimizer, averager, backward_passes_per_step, divides=average_aggregated_gradients
        )
    object.__setattr__(optimizer, "register_local_var", local.add)
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A `DistributedOptimizer` that leaves the gradients of some layers as each rank has them.

    Args:
      optimizer: as of `DistributedOptimizer`, as are the options that are not listed here.
      name: as of `DistributedOptimizer`.
      device_dense: no meaning.
      device_sparse: no meaning.
      compression: as of `DistributedOptimizer`.
      sparse_as_dense: as of `DistributedOptimizer`.
      gradient_predivide_factor: no meaning.
      op: as of `DistributedOptimizer`.
      backward_passes_per_step: as of `DistributedOptimizer`.
      average_aggregated_gradients: as of `DistributedOptimizer`.
      num_groups: no meaning.
      groups: no meaning.
      process_set: as of `DistributedOptimizer`.
      local_layers: a built Keras layer, or a list of them, on all ranks the same; None: none.
      scale_local_gradients: divide their gradients by the number of ranks.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError, NotSupportedError, ShutdownError: as `DistributedOptimizer`; or
        `local_layers` has something else.
    """
    variables = variables_of(local_layers)
    DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables:
        optimizer.register_local_var(variable)
    return optimizer


def _averager(
    name: str, op: int, compression: Any, sparse_as_dense: bool, process_set: ProcessSet
) -> Any:
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from herring.horovod.tensorflow.averaging import make_averager

        return make_averager(
            name,
            op=op,
            compression=_of_tensorflow(compression),
            sparse_as_dense=sparse_as_dense,
            process_set=process_set,
        )
    if op == Adasum:
        raise NotSupportedError(
            f"op=hvd.Adasum with Keras on {backend!r}; it is there on TensorFlow, and for PyTorch "
            "in herring.horovod.torch"
        )
    half = is_half(compression)
    if not half and compression is not NoneCompressor:
        raise NotSupportedError(
            f"compression={compression!r} with Keras on {backend!r}; use hvd.Compression.none or "
            "hvd.Compression.fp16"
        )
    options = {
        "op": "sum" if op == Sum else "average",
        "wire_dtype": "float16" if half else None,
        "buffer_bytes": 0,
        "sparse": "densify",
        "group": group_of(process_set),
    }
    return make_host_averager(name, options)


def _of_tensorflow(compression: Any) -> Any:
    from herring.horovod.tensorflow.compression import FP16Compressor

    return FP16Compressor if is_half(compression) else compression


class _Averaging:
    """Averages what is not local, with Horovod's errors; a rank that has joined takes part."""

    def __init__(self, averager: Any, local: LocalVariables) -> None:
        self._averager = averager
        self._local = local

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages over all ranks (collective)."""
        with internal_errors():
            found = self._local.around(self._averager.average, gradients, variables)
        # What programs of JAX call goes on without a rank that has joined.
        lists = getattr(self._averager, "_rounds", {}).values()
        rounds.reducers.update(one for one in lists if isinstance(one, GradientRounds))
        return found


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model that was saved with its optimizer, and makes that a `DistributedOptimizer`.

    Args:
      filepath: of a model that any number of ranks has trained.
      custom_optimizers: classes of optimizers that Keras does not have.
      custom_objects: as of keras.saving.load_model.
      compression: as of `DistributedOptimizer`.
      legacy_opts: False: Keras 3 has no legacy optimizers.

    Returns:
      The model.

    Raises:
      InvalidArgumentError: it was saved without an optimizer.
      NotSupportedError: legacy optimizers.
    """
    if legacy_opts:
        raise NotSupportedError("load_model(legacy_opts=True): Keras 3 has no legacy optimizers")
    known = {one.__name__: one for one in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.saving.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is None:
        raise InvalidArgumentError(f"{filepath}: the model was saved without an optimizer")
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
