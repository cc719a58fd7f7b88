"""DistributedOptimizer with the order of arguments that horovod.tensorflow has."""

from __future__ import annotations

from typing import Any

from herring.horovod.common.exceptions import NotSupportedError
from herring.horovod.common.operators import Average
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.keras import optimizer as of_keras
from herring.horovod.tensorflow.compression import Compression

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer of tf.keras apply averages over all ranks, and returns it.

    Args and errors as of `herring.horovod.keras.DistributedOptimizer`.

    Args:
      optimizer: a tf.keras.optimizers.Optimizer.
      name: of its operations.
      use_locking: no meaning.
      device_dense: no meaning.
      device_sparse: no meaning.
      compression: `Compression.none`, `Compression.fp16` or a class like these.
      sparse_as_dense: make tensors of tf.IndexedSlices.
      backward_passes_per_step: gradients of so many calls of `apply` add up before a step.
      op: Average, Sum or Adasum (combines gradients).
      gradient_predivide_factor: no meaning.
      average_aggregated_gradients: divide what has added up by their number.
      num_groups: no meaning.
      groups: no meaning.
      process_set: who takes part.
      scale_local_gradients: divide gradients of local variables by the number of ranks.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError, ShutdownError: as there.
      NotSupportedError: an optimizer of TensorFlow 1.
    """
    if type(optimizer).__module__.startswith("tensorflow.python.training"):
        raise NotSupportedError(
            f"{type(optimizer).__name__} is an optimizer of TensorFlow 1; use one of "
            "tf.keras.optimizers, or hvd.DistributedGradientTape"
        )
    return of_keras.DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
