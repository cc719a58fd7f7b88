"""Keras 3 optimizers that average gradients over all ranks, with Horovod's options.

Args:
  optimizer: A keras.optimizers.Optimizer, which is changed in place.
  name: Prefix of the operation names, the same on all ranks. None numbers the optimizers in the
    order of their creation, which must be the same on all ranks.
  op: Average, Sum or, on TensorFlow, Adasum, which combines the gradients of a power of two of
    ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

import herring
from herring.arrays.gradients import GradientRounds
from herring.errors import InvalidArgumentError
from herring.horovod.common import rounds
from herring.horovod.common.compression import is_half, is_own, wire_dtype_of
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
from herring.horovod.keras.accumulation import distribute_accumulating, require_passes
from herring.horovod.keras.compression import Compression
from herring.keras.averaging import make_averager as make_host_averager
from herring.keras.optimizer import distribute, goes_on, require_plain


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
    """Makes a Keras optimizer average gradients over all ranks before it applies them.

    The optimizer is changed in place and returned: its `apply`, and every method that calls
    `apply`, averages first. A saved model contains the original optimizer class. With
    mixed_float16, wrap the outermost optimizer:
    ``DistributedOptimizer(LossScaleOptimizer(Adam()))``. A rank that is not in the process set
    steps without communication.

    Returns:
      `optimizer`, with an additional method ``register_local_var(variable)``, which excludes the
      variable's gradient from averaging.

    Raises:
      InvalidArgumentError: `optimizer` is not a Keras 3 optimizer, or already averages gradients;
        or another argument has an invalid value.
      NotSupportedError: an argument is supported on TensorFlow only.
      ShutdownError: `init` was not called.
    """
    check_gradient_options(op, gradient_predivide_factor)
    check_passes(backward_passes_per_step)
    check_groups(groups, num_groups)
    require_plain(optimizer)
    herring.rank()  # Raises an error if this process is not in a job.
    if goes_on(optimizer):
        return optimizer
    member = process_set.included() is not False
    local = LocalVariables(process_set, scales=scale_local_gradients, divide=_divide())
    averager: Any = Alone()
    if member:
        found = _averager(name, op, compression, sparse_as_dense, process_set)
        averager = _Averaging(found, local)
    if backward_passes_per_step == 1:
        require_passes(optimizer, 1)
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
    """Makes a Keras optimizer average all gradients except those of some layers.

    The optimizer is changed in place and returned.

    Args:
      local_layers: a built Keras layer, or a list of layers, the same on all ranks; None means
        none.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError: `optimizer` is not a Keras 3 optimizer, or already averages gradients;
        `local_layers` contains something that is not a layer; or another argument has an invalid
        value.
      NotSupportedError: an argument is supported on TensorFlow only.
      ShutdownError: `init` was not called.
    """
    options = {**locals()}  # the arguments by name
    variables = variables_of(options.pop("local_layers"))
    DistributedOptimizer(**options)
    for variable in variables:
        optimizer.register_local_var(variable)
    return optimizer


def _averager(
    name: str | None, op: int, compression: Any, sparse_as_dense: bool, process_set: ProcessSet
) -> Any:
    kind = name or "horovod.DistributedOptimizer"
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from herring.horovod.tensorflow.averaging import make_averager

        return make_averager(
            kind,
            numbered=name is None,
            op=op,
            compression=_of_tensorflow(compression),
            sparse_as_dense=sparse_as_dense,
            process_set=process_set,
        )
    if op == Adasum:
        raise NotSupportedError(
            f"op=hvd.Adasum is not supported with Keras on {backend!r}; use the TensorFlow "
            "backend, or herring.horovod.torch"
        )
    if not is_own(compression):
        raise NotSupportedError(
            f"compression={compression!r} is not supported with Keras on {backend!r}; use "
            "hvd.Compression.none, fp16, fp8 or int8"
        )
    options = {
        "op": "sum" if op == Sum else "average",
        "wire_dtype": wire_dtype_of(compression),
        "buffer_bytes": 0,
        "sparse": "densify",
        "group": group_of(process_set),
        "divide_by_all": rounds.joined_as_zeros(),
    }
    return make_host_averager(kind, options, numbered=name is None)


def _divide() -> Callable[..., Any] | None:
    """Returns what divides gradients of local variables, or None for what every backend can do."""
    if keras.backend.backend() != "tensorflow":
        return None
    from herring.horovod.tensorflow.averaging import divided

    return divided


def _of_tensorflow(compression: Any) -> Any:
    from herring.horovod.tensorflow.compression import FP16Compressor

    return FP16Compressor if is_half(compression) else compression


class _Averaging:
    """Averages the gradients that are not local; raises Horovod's errors and supports `join`."""

    def __init__(self, averager: Any, local: LocalVariables) -> None:
        self._averager = averager
        self._local = local
        self.follows = getattr(averager, "follows", False)

    def begin_anew(self) -> bool:
        """See `JaxAverager.begin_anew`."""
        return bool(self._averager.begin_anew())

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients over all ranks (collective)."""
        with internal_errors():
            found = self._local.around(self._averager.average, gradients, variables)
        # Only planned rounds need ranks that have joined; operations of JAX programs do not.
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
    """Loads a saved Keras model and makes its optimizer average gradients over all ranks.

    Args:
      filepath: path of a model that was saved with its optimizer, in a job of any size.
      custom_optimizers: optimizer classes that are not part of Keras.
      custom_objects: a dictionary of further custom objects, for keras.saving.load_model.
      legacy_opts: must be False, because Keras 3 has no legacy optimizers.

    Returns:
      The model.

    Raises:
      InvalidArgumentError: the model was saved without an optimizer.
      NotSupportedError: `legacy_opts` is true, or `compression` is supported on TensorFlow only.
      ShutdownError: `init` was not called.
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
