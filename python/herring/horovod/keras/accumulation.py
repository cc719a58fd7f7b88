"""Keras optimizers that accumulate the gradients of several backward passes before a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from herring.errors import InvalidArgumentError
from herring.keras.optimizer import Averaging, distribute, set_class

_PASSES = "_herring_passes"


def distribute_accumulating(optimizer: Any, averager: Any, passes: int, *, divides: bool) -> None:
    """Makes an optimizer average the gradients of several backward passes before each step.

    On TensorFlow, gradients add up on each rank and are averaged once per step. On other backends,
    gradients are averaged after each pass, and Keras adds up the averages
    (`gradient_accumulation_steps`). Saved models do not contain this number, because Keras would
    divide by it where a loaded optimizer is wrapped without `passes`.

    Args:
      optimizer: a Keras optimizer, which must not be built yet, except on TensorFlow.
      averager: an object with a method ``average(gradients, variables)``, which returns a list.

    Raises:
      InvalidArgumentError: the optimizer is built, or already accumulates gradients itself; or it
        had another number of passes in an earlier job.
    """
    if keras.backend.backend() == "tensorflow":
        object.__setattr__(optimizer, _PASSES, _Passes(passes, divides=divides))
        distribute(optimizer, averager, _accumulating)
        return
    one = getattr(optimizer, "inner_optimizer", optimizer)
    kind: Any = type(one)
    require_passes(optimizer, passes)
    if not _accumulates(one) and (one.gradient_accumulation_steps or one.built):
        raise InvalidArgumentError(
            f"backward_passes_per_step is {passes}, and {one.name!r} "
            + ("is built already: wrap it before its first step" if one.built else "accumulates")
        )
    one.gradient_accumulation_steps = passes
    if one is not optimizer and not _accumulates(one):
        set_class(one, _saved_without_passes(kind))
    distribute(
        optimizer, averager if divides else _Multiplied(averager, passes), _saved_without_passes
    )


def require_passes(optimizer: Any, passes: int) -> None:
    """Checks that an optimizer of an earlier job is wrapped with the same number of passes."""
    one = getattr(optimizer, "inner_optimizer", optimizer)
    if _accumulates(one) and one.gradient_accumulation_steps != passes:
        raise InvalidArgumentError(
            f"backward_passes_per_step is {passes}, and {one.name!r} was wrapped with "
            f"{one.gradient_accumulation_steps} before; use that number, or a new optimizer"
        )


def _accumulates(optimizer: Any) -> bool:
    """Returns whether Keras adds up the optimizer's gradients because this module asked for it."""
    return issubclass(type(optimizer), _SavedWithoutPasses)


def forget_passes(optimizer: Any) -> None:
    """Drops the gradients of passes after which an optimizer has not made a step yet."""
    passes = getattr(optimizer, _PASSES, None)
    if passes is not None:
        passes.forget()


class _Multiplied:
    """Multiplies averages by the number of passes, because Keras divides by this number."""

    def __init__(self, averager: Any, factor: int) -> None:
        self._averager = averager
        self._factor = factor
        self.follows = getattr(averager, "follows", False)
        self.begin_anew = getattr(averager, "begin_anew", None)

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients and multiplies the averages by the factor."""
        found = self._averager.average(gradients, variables)
        return [None if one is None else one * self._factor for one in found]


class _Passes:
    """Adds up gradients in TensorFlow variables, and makes a step after the last pass."""

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
        """Adds up gradients and counts the pass; after the last pass of a step, calls `step`."""
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

    def forget(self) -> None:
        """Drops the gradients of the passes after the last step."""
        import tensorflow as tf

        if self._count is not None:
            self._count.assign(0)
        for total in self._sums.values():
            total.assign(tf.zeros_like(total))

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


class _SavedWithoutPasses:
    """Common base of the classes that `_saved_without_passes` creates."""


@functools.cache
def _saved_without_passes(kind: Any) -> Any:
    """Returns a subclass of an optimizer class that saves and loads no unfinished steps.

    Saved files look like those of an optimizer that has made the same steps without accumulating.
    """

    def get_config(self: Any) -> dict[str, Any]:
        config: dict[str, Any] = kind.get_config(self)
        if "gradient_accumulation_steps" in config:
            config["gradient_accumulation_steps"] = None
        return config

    def save_own_variables(self: Any, store: Any) -> None:
        kept, _, iterations, passes = _state_of(self)
        for i, variable in enumerate(kept):
            value = np.asarray(keras.ops.convert_to_numpy(variable))
            store[str(i)] = value // passes if variable is iterations else value

    def load_own_variables(self: Any, store: Any) -> None:
        kept, sums, iterations, passes = _state_of(self)
        if len(store.keys()) != len(kept):  # Keras says so, or it has the sums of older versions.
            kind.load_own_variables(self, store)
            return
        for i, variable in enumerate(kept):
            value = np.asarray(store[str(i)])
            variable.assign(value * passes if variable is iterations else value)
        for total in sums:
            total.assign(keras.ops.zeros(total.shape, total.dtype))

    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "get_config": get_config,
        "save_own_variables": save_own_variables,
        "load_own_variables": load_own_variables,
    }
    if not issubclass(kind, Averaging):  # Code that saves the optimizer sees its own class.
        members |= {"__class__": property(lambda self: kind), "from_config": kind.from_config}
    return type(kind.__name__, (kind, _SavedWithoutPasses), members)


def _state_of(optimizer: Any) -> tuple[list[Any], list[Any], Any, int]:
    """Returns the variables to save, the sums of the passes, the count and the number of passes."""
    one = getattr(optimizer, "inner_optimizer", optimizer)
    sums = list(getattr(one, "_accumulated_gradients", ()))
    apart = {id(variable) for variable in sums}
    kept = [variable for variable in optimizer.variables if id(variable) not in apart]
    return kept, sums, one._iterations, one.gradient_accumulation_steps


@functools.cache
def _accumulating(kind: Any) -> Any:
    """Returns a subclass of the averaging class `kind` that accumulates before each step."""
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
