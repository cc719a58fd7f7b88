"""Optimizers of Keras 3 that apply averages over all ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras

from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError
from herring.keras.averaging import make_averager

__all__ = ["DistributedOptimizer", "distribute", "is_distributed", "load_model", "require_plain"]

_AVERAGER = "_herring_averager"


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    *,
    op: str = "average",
    wire_dtype: str | None = None,
    buffer_bytes: int = 0,
    sparse: str = "densify",
    name: str | None = None,
    group: Group | None = None,
) -> Any:
    """Makes an optimizer of Keras apply averages over all ranks.

    The optimizer itself is changed, and returned: what it has learnt, its schedule and whoever
    refers to it stay. Only its `apply` differs (and all that goes by it: `apply_gradients`,
    `stateless_apply`); it is saved as what it was.

    With mixed_float16 wrap the outermost: ``DistributedOptimizer(LossScaleOptimizer(Adam()))``.
    Then scaled gradients are averaged, and all ranks see the same ones that are not finite.

    Args:
      optimizer: a keras.optimizers.Optimizer.
      op: "average" or "sum".
      wire_dtype: "float16" or "bfloat16": float32 gradients travel between nodes in it.
      buffer_bytes: size of a fusion buffer; 0: chosen by the plan.
      sparse: "densify" makes tensors of tf.IndexedSlices; "gather" concatenates the slices of all
        ranks (TensorFlow only).
      name: of its operations. None: optimizers are numbered in the order in which they are made,
        which must be the same on all ranks.
      group: those who take part; None: all ranks.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError: not an optimizer of Keras 3, or averaging already.
      ShutdownError: `herring.init` was not called.
    """
    require_plain(optimizer)
    name = name or name_of_next("optimizer", group)
    averager = make_averager(
        name,
        {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "sparse": sparse,
            "group": group,
        },
    )
    return distribute(optimizer, averager)


def require_plain(optimizer: Any) -> None:
    """Raises InvalidArgumentError unless it is an optimizer of Keras that averages nothing yet."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"optimizer is {optimizer!r}; it must be a keras.optimizers.Optimizer of Keras 3"
        )
    if is_distributed(optimizer):
        raise InvalidArgumentError(f"{optimizer.name!r} averages gradients already")


def distribute(optimizer: Any, averager: Any, derived: Callable[[type], type] | None = None) -> Any:
    """Makes an optimizer apply what `averager` makes of its gradients, and returns it.

    Args:
      optimizer: one that `require_plain` passes.
      averager: has ``average(gradients, variables)``, which returns a list.
      derived: makes of the class that averages the one that the optimizer gets; None: that one.
    """
    # Past Keras' own __setattr__, which would track it as state to be saved.
    object.__setattr__(optimizer, _AVERAGER, averager)
    kind = _distributed(type(optimizer))
    object.__setattr__(optimizer, "__class__", kind if derived is None else derived(kind))
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether a `DistributedOptimizer` made this optimizer average."""
    return issubclass(type(optimizer), _Averaging)


def load_model(filepath: Any, *arguments: Any, **options: Any) -> Any:
    """As keras.saving.load_model, with a `DistributedOptimizer`.

    Args:
      filepath: of a model that was saved with its optimizer, by any number of ranks.
      *arguments: of keras.saving.load_model.
      **options: of keras.saving.load_model; those of `DistributedOptimizer` as a dictionary
        ``distributed``.

    Returns:
      The model.

    Raises:
      InvalidArgumentError: it was saved without an optimizer.
    """
    distributed = options.pop("distributed", {})
    model = keras.saving.load_model(filepath, *arguments, **options)
    if getattr(model, "optimizer", None) is None:
        raise InvalidArgumentError(f"{filepath}: the model was saved without an optimizer")
    DistributedOptimizer(model.optimizer, **distributed)
    return model


class _Averaging:
    """What the classes below have in common."""


@functools.cache
def _distributed(kind: type) -> type:
    """The class of an optimizer of class `kind` that averages."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = _averaged(self, grads, trainable_variables)
        return kind.apply(self, grads, trainable_variables)

    def stateless_apply(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        grads = _averaged(self, grads, None)
        return kind.stateless_apply(self, optimizer_variables, grads, trainable_variables)

    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        # What saves it, or makes another from its config, sees the class that it was.
        "__class__": property(lambda self: kind),
        "from_config": kind.from_config,
        "apply": functools.wraps(kind.apply)(_outside_autograph(apply)),
    }
    if issubclass(kind, keras.optimizers.LossScaleOptimizer):
        # On JAX it looks at gradients before anything calls `apply`.
        members["stateless_apply"] = stateless_apply
    return type(kind.__name__, (kind, _Averaging), members)


def _outside_autograph(function: Any) -> Any:
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def _averaged(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    gradients = list(gradients)
    if not gradients:
        return gradients
    _require_outermost(optimizer)
    if variables is None:
        if not optimizer.built:
            return gradients  # which Keras refuses
        variables = optimizer._trainable_variables
    return getattr(optimizer, _AVERAGER).average(gradients, list(variables))


def _require_outermost(optimizer: Any) -> None:
    """Raises InvalidArgumentError if a LossScaleOptimizer calls this one.

    It would look for values that are not finite in this rank's gradients alone, and skip the step
    here and not there.
    """
    frame = sys._getframe(1)
    for _ in range(40):  # it is not far away
        frame = frame.f_back
        if frame is None:
            return
        caller = frame.f_locals.get("self")
        if (
            caller is not optimizer
            and isinstance(caller, keras.optimizers.LossScaleOptimizer)
            and caller.inner_optimizer is optimizer
        ):
            raise InvalidArgumentError(
                "a LossScaleOptimizer is around the DistributedOptimizer, so each rank would look "
                "for overflow in its own gradients only. With mixed_float16, which makes "
                "compile() put one there, wrap it yourself, the other way round: "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
            )
