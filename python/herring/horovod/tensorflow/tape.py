"""Gradient tapes that average gradients over all ranks, with Horovod's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import herring.tensorflow as plain
from herring.horovod.common.local import LocalVariables, check_groups, variables_of
from herring.horovod.common.operators import Average, check_gradient_options
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.tensorflow.averaging import divided, make_averager
from herring.horovod.tensorflow.compression import Compression


class DistributedGradientTape(plain.DistributedGradientTape):
    """A tf.GradientTape whose `gradient` returns gradients averaged over all ranks.

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
        """Takes over the recording of a tape.

        Args:
          gradtape: a tf.GradientTape, persistent or not.

        Raises:
          InvalidArgumentError: `gradtape` is not a tape, or another argument has an invalid value.
          ShutdownError: `init` was not called.
        """
        check_gradient_options(op, gradient_predivide_factor)
        check_groups(groups, num_groups)
        super().__init__(gradtape)
        self._local = LocalVariables(process_set, scales=scale_local_gradients, divide=divided)
        self._herring_options = {
            "op": op,
            "compression": compression,
            "sparse_as_dense": sparse_as_dense,
            "process_set": process_set,
        }

    def register_local_source(self, source: Any) -> None:
        """Excludes a variable's gradient from averaging; all ranks must call this."""
        self._local.add(source)

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Computes gradients and averages them over all ranks (collective).

        Args:
          target: the tensor or structure of tensors that is differentiated.
          sources: a nested structure of variables or tensors. Shapes, dtypes and order must be the
            same on all ranks.
          output_gradients: the argument of tf.GradientTape.gradient.
          unconnected_gradients: the argument of tf.GradientTape.gradient. In Horovod,
            `use_generic_names` has its place; a bool here is taken for it.
          use_generic_names: ignored, because names of operations do not depend on those of
            variables.

        Returns:
          Averages in the structure of `sources`.

        Raises:
          InvalidArgumentError: inside tf.distribute, compiled by XLA, or a gradient that cannot be
            averaged.
          HorovodInternalError: ranks disagree, or a rank was lost or did not call in time.
        """
        if isinstance(unconnected_gradients, bool):
            unconnected_gradients = tf.UnconnectedGradients.NONE
        return super().gradient(target, sources, output_gradients, unconnected_gradients)

    @tf.autograph.experimental.do_not_convert
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Computes gradients, and averages those of sources that are not local (collective).

        Args:
          target: the tensor or structure of tensors that is differentiated.
          sources: a list of variables; shapes, dtypes and order must be the same on all ranks.
          output_gradients: the argument of tf.GradientTape.gradient.
          use_generic_names: ignored.

        Returns:
          Pairs of a local source and its gradient, and pairs of another source and its average.

        Raises:
          InvalidArgumentError, HorovodInternalError: for the same reasons as in `gradient`.
        """
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients)))
        local = [pair for pair in pairs if self._local.has(pair[0])]
        return local, [pair for pair in pairs if not self._local.has(pair[0])]

    def _new_averager(self, name: str | None) -> Any:
        options = self._herring_options
        return make_averager(name or "horovod.tape", numbered=name is None, **options)

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
    """Creates a `DistributedGradientTape` that does not average the gradients of some layers.

    Args:
      gradtape: a tf.GradientTape, persistent or not.
      local_layers: a Keras layer, or a list of layers, the same on all ranks; None means none.

    Returns:
      The tape.

    Raises:
      InvalidArgumentError: `gradtape` is not a tape, `local_layers` contains something that is not
        a layer, or another argument has an invalid value.
      ShutdownError: `init` was not called.
    """
    options = {**locals()}  # the arguments by name
    variables = variables_of(options.pop("local_layers"))
    tape = DistributedGradientTape(**options)
    for variable in variables:
        tape.register_local_source(variable)
    return tape
