"""DistributedOptimizer with the argument order of horovod.tensorflow.

Args:
  name: Prefix of the operation names, the same on all ranks. None numbers the optimizers in the
    order of their creation, which must be the same on all ranks.
"""

from __future__ import annotations

from typing import Any

from herring.horovod.common.exceptions import NotSupportedError
from herring.horovod.common.operators import Average
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.keras import optimizer as of_keras
from herring.horovod.tensorflow.compression import Compression


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
    """Makes a tf.keras optimizer average gradients over all ranks before it applies them.

    The optimizer is changed in place and returned.

    Args:
      optimizer: a tf.keras.optimizers.Optimizer.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError: `optimizer` is not a Keras 3 optimizer, or already averages gradients;
        or another argument has an invalid value.
      NotSupportedError: `optimizer` is an optimizer of TensorFlow 1.
      ShutdownError: `init` was not called.
    """
    options = {**locals()}  # the arguments by name
    del options["use_locking"]
    if type(optimizer).__module__.startswith("tensorflow.python.training"):
        raise NotSupportedError(
            f"{type(optimizer).__name__} is an optimizer of TensorFlow 1; use one of "
            "tf.keras.optimizers, or hvd.DistributedGradientTape"
        )
    return of_keras.DistributedOptimizer(**options)
