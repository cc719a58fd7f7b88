"""A gradient tape whose gradients are averages, with Horovod's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import herring.tensorflow as plain
from herring.arrays.calls import name_of_next
from herring.horovod.common.local import LocalVariables, check_groups, variables_of
from herring.horovod.common.operators import Average, check_gradient_options
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.tensorflow.averaging import make_averager
from herring.horovod.tensorflow.compression import Compression

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class DistributedGradientTape(plain.DistributedGradientTape):
    """A tf.GradientTape whose `gradient` returns averages over all ranks.

    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """Takes over what the tape has recorded.

        Args:
          gradtape: a tf.GradientTape, persistent or not.
          device_dense: no meaning.
          device_sparse: no meaning.
          compression: `Compression.none`, `Compression.fp16` (float32 gradients travel between
            nodes in 16 bits and are added in 32) or a class like these.
          sparse_as_dense: make tensors of tf.IndexedSlices; else all ranks get the slices of all.
          op: Average, Sum or Adasum (combines the gradients of a power of two of ranks).
          gradient_predivide_factor: no meaning: sums cannot overflow before they are divided.
          num_groups: older than `groups`.
          groups: checked, and without meaning: gradients share fusion buffers anyway.
          process_set: who takes part; a rank that is not in it keeps its gradients.
          scale_local_gradients: divide those of local sources by the number of ranks.

        Raises:
          InvalidArgumentError: not a tape, or an option that is impossible.
          ShutdownError: `init` was not called.
        """
        check_gradient_options(op, gradient_predivide_factor)
        check_groups(groups, num_groups)
        super().__init__(gradtape)
        self._local = LocalVariables(process_set, scales=scale_local_gradients)
        self._herring_options = {
            "op": op,
            "compression": compression,
            "sparse_as_dense": sparse_as_dense,
            "process_set": process_set,
        }

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a variable as this rank has it; call it on all ranks."""
        self._local.add(source)

    def _next_name(self) -> str:
        process_set = self._herring_options["process_set"]
        if process_set.included() is False:
            return "horovod.tape.of_others"  # not to be ahead of ranks that number their own
        return name_of_next("horovod.tape", group_of(process_set))

    def _new_averager(self, name: str) -> Any:
        return make_averager(name, **self._herring_options)

    def _average(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        return self._local.around(super()._average, gradients, variables)


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedGradientTape:
    """A `DistributedGradientTape` that leaves the gradients of some layers as each rank has them.

    Args:
      gradtape: as of `DistributedGradientTape`, as are the options that are not listed.
      device_dense: no meaning.
      device_sparse: no meaning.
      compression: as of `DistributedGradientTape`.
      sparse_as_dense: as of `DistributedGradientTape`.
      op: as of `DistributedGradientTape`.
      gradient_predivide_factor: no meaning.
      num_groups: no meaning.
      groups: no meaning.
      process_set: as of `DistributedGradientTape`.
      local_layers: a Keras layer, or a list of them, on all ranks the same; None: none.
      scale_local_gradients: divide their gradients by the number of ranks.

    Returns:
      The tape.

    Raises:
      InvalidArgumentError: as `DistributedGradientTape`; `local_layers` has something else.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape
