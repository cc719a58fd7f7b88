"""Optimizers of Keras that make a step of the gradients of several backward passes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from herring.errors import InvalidArgumentError
from herring.keras.optimizer import distribute

__all__ = ["distribute_accumulating"]

_PASSES = "_herring_passes"


def distribute_accumulating(optimizer: Any, averager: Any, passes: int, *, divides: bool) -> None:
    """Makes an optimizer step with what `averager` makes of the gradients of several passes.

    On TensorFlow gradients add up on each rank, and are averaged once per step. On other backends
    Keras adds up averages (`gradient_accumulation_steps`).

    Args:
      optimizer: of Keras, and not built yet unless on TensorFlow.
      averager: as of `distribute`.
      passes: calls of `apply` that make a step.
      divides: whether what has added up is divided by their number.

    Raises:
      InvalidArgumentError: the optimizer is built, or accumulates by itself.
    """
    if keras.backend.backend() == "tensorflow":
        object.__setattr__(optimizer, _PASSES, _Passes(passes, divides=divides))
        distribute(optimizer, averager, _accumulating)
        return
    one = getattr(optimizer, "inner_optimizer", optimizer)
    if one.gradient_accumulation_steps or one.built:
        raise InvalidArgumentError(
            f"backward_passes_per_step is {passes}, and {one.name!r} "
            + ("is built already: wrap it before its first step" if one.built else "accumulates")
        )
    one.gradient_accumulation_steps = passes
    distribute(optimizer, averager if divides else _Multiplied(averager, passes))


class _Multiplied:
    """Undoes that Keras divides by the number of passes."""

    def __init__(self, averager: Any, factor: int) -> None:
        self._averager = averager
        self._factor = factor

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages, times the factor."""
        found = self._averager.average(gradients, variables)
        return [None if one is None else one * self._factor for one in found]


class _Passes:
    """Adds up gradients in variables of TensorFlow, and says when a step is due."""

    def __init__(self, passes: int, *, divides: bool) -> None:
        self._passes = passes
        self._divisor = passes if divides else 1
        self._sums: dict[int, Any] = {}
        self._count: Any = None

    def apply(
        self,
        optimizer: Any,
        step: Callable[..., Any],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> None:
        """Adds gradients up; with the last pass it calls `step`, with the others it only counts."""
        import tensorflow as tf

        sums = self._sums_of(variables)
        for total, gradient in zip(sums, gradients):
            if gradient is not None:
                total.assign_add(tf.cast(tf.convert_to_tensor(gradient), total.dtype))
        self._count.assign_add(1)

        def last() -> tf.Tensor:
            step(
                optimizer,
                [
                    None if gradient is None else total / tf.cast(self._divisor, total.dtype)
                    for total, gradient in zip(sums, gradients)
                ],
                variables,
            )
            for total in sums:
                total.assign(tf.zeros_like(total))
            return self._count.assign(0)

        def another() -> tf.Tensor:
            optimizer._iterations.assign_add(1)
            return tf.identity(self._count)

        tf.cond(self._count >= self._passes, last, another)

    def _sums_of(self, variables: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        with tf.init_scope():
            if self._count is None:
                self._count = tf.Variable(0, dtype=tf.int32, trainable=False)
            for variable in variables:
                if id(variable) not in self._sums:
                    zeros = tf.zeros(variable.shape, variable.dtype)
                    self._sums[id(variable)] = tf.Variable(zeros, trainable=False)
        return [self._sums[id(variable)] for variable in variables]


@functools.cache
def _accumulating(kind: Any) -> Any:
    """The class of an optimizer of class `kind`, which averages, that steps after some passes."""
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        gradients = list(grads)
        if not gradients:
            return
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        variables = list(variables)
        if not self.built:
            self.build(variables)
        getattr(self, _PASSES).apply(self, kind.apply, gradients, variables)

    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "apply": apply}
    return type(kind.__name__, (kind,), members)
