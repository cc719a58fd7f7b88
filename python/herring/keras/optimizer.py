"""Keras 3 optimizers that average gradients over all ranks before they apply them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras

from herring.arrays.arguments import Operator
from herring.arrays.groups import Group
from herring.arrays.runtime import is_running, job
from herring.arrays.wire import WireDType
from herring.errors import InvalidArgumentError
from herring.keras.averaging import make_averager
from herring.keras.rounds import OptimizerRounds
from herring.partial import Quorum, Replay, RoundStatistics
from herring.partial.lists import PartialLists, wants_lists

_AVERAGER = "_herring_averager"
_JOB = "_herring_job"  # in which the optimizer was wrapped last


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    *,
    op: Operator = "average",
    wire_dtype: WireDType | None = None,
    buffer_bytes: int = 0,
    sparse: str = "densify",
    sync: str | Quorum | Replay = "full",
    algorithm: str = "herring",
    digest_every: int = 100,
    name: str | None = None,
    group: Group | None = None,
) -> Any:
    """Makes a Keras optimizer average gradients over all ranks before it applies them.

    The optimizer is changed in place and returned, so its state, its schedule and all references to
    it stay valid. Only `apply` changes, and with it `apply_gradients` and `stateless_apply`, which
    call `apply`. A saved model contains the original optimizer class.

    With mixed_float16, wrap the outermost optimizer:
    ``DistributedOptimizer(LossScaleOptimizer(Adam()))``. Scaled gradients are then averaged, so all
    ranks see the same overflows and skip the same steps.

    In an elastic job the optimizer averages in each generation. Another call for it in a later
    generation, by a training function that begins again, does nothing. After `herring.shutdown` and
    `herring.init`, wrap the optimizer again, and compile its model again.

    An optimizer cannot be copied with the module copy, nor can a model compiled with it: Keras
    would copy the original optimizer, which does not average. Nor can it be pickled. A model that
    is compiled with it can, and has the original optimizer afterwards, like a saved one.

    Args:
      optimizer: a keras.optimizers.Optimizer.
      op: "average" or "sum".
      wire_dtype: "float16" or "bfloat16" sends float32 gradients between nodes in that dtype.
        "fp8", "fp8_e5m2" or "int8" sends all, with a scale for each 32 numbers. With a pair such as
        ``("fp8", "bfloat16")`` averages come back in the second. None sends them unchanged.
      buffer_bytes: fusion-buffer size in bytes; 0 lets the plan choose.
      sparse: "densify" converts tf.IndexedSlices to dense tensors; "gather" concatenates the slices
        of all ranks (TensorFlow only).
      sync: "full" waits for every rank. "solo", "majority", a `herring.Quorum` or a
        `herring.Replay` exchanges gradients in rounds that do not (docs/partial.md). `apply` then
        makes one step for each round's result, so that `iterations` and schedules count rounds.
        The optimizer has ``flush()``, which ends training, ``round`` and ``statistics``; see
        `FlushCallback`.
      algorithm: who closes the rounds and sums, with `sync` "solo" or "majority": "herring" (the
        servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers).
      digest_every: with such a `sync`, the number of rounds after which ranks compare a digest of
        the trainable variables; 0 means never.
      name: prefix of the operation names, the same on all ranks. None numbers the optimizers in the
        order of their creation, which must be the same on all ranks.

    Returns:
      `optimizer`.

    Raises:
      InvalidArgumentError: `optimizer` is not a Keras 3 optimizer, or already averages gradients;
        or an option has an invalid value.
      ShutdownError: `herring.init` was not called.
    """
    require_plain(optimizer)
    if goes_on(optimizer):
        return optimizer
    if wants_lists(
        sync,
        algorithm=algorithm,
        wire_dtype=wire_dtype,
        buffer_bytes=buffer_bytes,
        sparse=sparse,
        group=group,
    ):
        lists = PartialLists(
            name or "optimizer",
            sync=sync,
            op=op,
            algorithm=algorithm,
            digest_every=digest_every,
            group=group,
            numbered=name is None,
        )
        return distribute(optimizer, OptimizerRounds(lists))
    averager = make_averager(
        name or "optimizer",
        {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "sparse": sparse,
            "group": group,
        },
        numbered=name is None,
    )
    return distribute(optimizer, averager)


def require_plain(optimizer: Any) -> None:
    """Checks that `optimizer` is a Keras 3 optimizer that averages no gradients in this job yet."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"optimizer is {optimizer!r}; it must be a keras.optimizers.Optimizer of Keras 3"
        )
    if is_distributed(optimizer) and not _is_of_before(optimizer):
        raise InvalidArgumentError(f"{optimizer.name!r} averages gradients already")


def _is_of_before(optimizer: Any) -> bool:
    """Returns whether an optimizer was wrapped in an earlier job, or in an earlier generation."""
    return not is_running(getattr(optimizer, _JOB))


def goes_on(optimizer: Any) -> bool:
    """Returns whether an optimizer averages in this job because it did so in an earlier one."""
    return is_distributed(optimizer) and getattr(getattr(optimizer, _AVERAGER), "follows", False)


def begins_anew(optimizer: Any) -> bool:
    """Lets an optimizer average in the present job instead of the one in which it was wrapped.

    Averagers that follow do so by themselves, and others only on JAX.

    Returns:
      Whether what is traced has to be traced anew.
    """
    if not is_distributed(optimizer) or keras.backend.backend() != "jax":
        return False
    begin = getattr(getattr(optimizer, _AVERAGER), "begin_anew", None)
    if begin is None or not begin():
        return False
    object.__setattr__(optimizer, _JOB, job())
    return True


def distribute(optimizer: Any, averager: Any, derived: Callable[[type], type] | None = None) -> Any:
    """Makes an optimizer apply the gradients that `averager` returns.

    Args:
      averager: an object with a method ``average(gradients, variables)``, which returns a list.
      derived: derives the optimizer's new class from the averaging class; None uses the averaging
        class itself.

    Returns:
      `optimizer`.
    """
    # Keras' own __setattr__ would track the averager as state to be saved.
    object.__setattr__(optimizer, _AVERAGER, averager)
    object.__setattr__(optimizer, _JOB, job())
    # An optimizer of an earlier job may have another averaging class; it shows the original one.
    kind = _distributed(optimizer.__class__)
    set_class(optimizer, kind if derived is None else derived(kind))
    return optimizer


def set_class(optimizer: Any, kind: type) -> None:
    """Changes the class of an optimizer, also of one that shows another class than its own."""
    object.__dict__["__class__"].__set__(optimizer, kind)


def is_distributed(optimizer: Any) -> bool:
    """Returns whether `DistributedOptimizer` was applied to this optimizer."""
    return issubclass(type(optimizer), Averaging)


def rounds_of(optimizer: Any) -> OptimizerRounds | None:
    """Returns the partial rounds of an optimizer; None if it has none."""
    if not is_distributed(optimizer):
        return None
    found = getattr(optimizer, _AVERAGER)
    return found if isinstance(found, OptimizerRounds) else None


def require_flushed(model: Any, what: str) -> None:
    """Raises InvalidArgumentError if the model's optimizer has rounds that are not flushed."""
    rounds = rounds_of(getattr(model, "optimizer", None))
    if rounds is not None and rounds.lists.open:
        raise InvalidArgumentError(
            f"{what} while partial rounds are under way ({rounds.lists.name}): ranks may be at "
            "different rounds. Put herring.keras.FlushCallback() before it in the list of callbacks"
        )


def load_model(filepath: Any, *arguments: Any, **options: Any) -> Any:
    """Loads a saved Keras model and makes its optimizer average gradients over all ranks.

    Args:
      filepath: path of a model that was saved with its optimizer, in a job of any size.
      *arguments: further positional arguments of keras.saving.load_model.
      **options: keyword arguments of keras.saving.load_model. The additional keyword
        ``distributed`` is a dictionary with keyword arguments of `DistributedOptimizer`.

    Returns:
      The model.

    Raises:
      InvalidArgumentError: the model was saved without an optimizer.
      ShutdownError: `herring.init` was not called.
    """
    distributed = options.pop("distributed", {})
    model = keras.saving.load_model(filepath, *arguments, **options)
    if getattr(model, "optimizer", None) is None:
        raise InvalidArgumentError(f"{filepath}: the model was saved without an optimizer")
    DistributedOptimizer(model.optimizer, **distributed)
    return model


class Averaging:
    """Common base of the classes that `_distributed` creates; `is_distributed` looks for it."""


@functools.cache
def _distributed(kind: Any) -> type:
    """Returns a subclass of the optimizer class `kind` that averages gradients."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        rounds = rounds_of(self)
        if rounds is None:
            grads = _averaged(self, grads, trainable_variables)
        elif not rounds.passes and (grads := list(grads)):
            _require_outermost(self)
            variables = trainable_variables
            if variables is None and self.built:
                variables = self._trainable_variables
            if variables is not None:
                return rounds.apply(self, kind, grads, list(variables))
        return kind.apply(self, grads, trainable_variables)

    def stateless_apply(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        if (rounds := rounds_of(self)) is not None and self.built:
            _require_outermost(self)
            return rounds.stateless_apply(
                self, kind, optimizer_variables, grads, trainable_variables
            )
        if issubclass(kind, keras.optimizers.LossScaleOptimizer):
            grads = _averaged(self, grads, None)  # it checks them before it calls `apply`
        return kind.stateless_apply(self, optimizer_variables, grads, trainable_variables)

    def flush(self: Any) -> None:
        """Makes the steps of all partial rounds until all ranks flush (collective)."""
        if (rounds := rounds_of(self)) is not None:
            rounds.flush(self, kind)

    def finalize_variable_values(self: Any, var_list: Any) -> None:
        rounds, inner = rounds_of(self), getattr(self, "inner_optimizer", self)
        if rounds is not None and rounds.lists.open and inner.use_ema:
            raise InvalidArgumentError(
                f"{rounds.lists.name}: use_ema replaces the variables at the end of fit, and "
                "rounds are under way: add herring.keras.FlushCallback() to the callbacks"
            )
        kind.finalize_variable_values(self, var_list)

    def get_config(self: Any) -> dict[str, Any]:
        _refuse_copies(self)
        config: dict[str, Any] = kind.get_config(self)
        return config

    def reduce(self: Any, protocol: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "copy":
            raise _no_copies(self)
        raise InvalidArgumentError(
            f"the DistributedOptimizer {self.name!r} cannot be pickled, because the optimizer that "
            "comes out would not average gradients. Pickle or save its model, or pickle "
            "keras.optimizers.serialize(optimizer), and wrap the optimizer that you get from it"
        )

    members = {
        "__reduce_ex__": reduce,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        # Code that saves the optimizer, or copies it from its config, sees the original class.
        "__class__": property(lambda self: kind),
        "from_config": kind.from_config,
        "get_config": functools.wraps(kind.get_config)(get_config),
        "apply": functools.wraps(kind.apply)(_outside_autograph(apply)),
        "finalize_variable_values": functools.wraps(kind.finalize_variable_values)(
            finalize_variable_values
        ),
        "flush": flush,
        "round": property(_round),
        "statistics": property(_statistics),
    }
    if keras.backend.backend() == "jax":
        members["stateless_apply"] = functools.wraps(kind.stateless_apply)(stateless_apply)
    return type(kind.__name__, (kind, Averaging), members)


def _round(optimizer: Any) -> int:
    """The number of partial rounds applied; equal numbers mean equal variables."""
    return _need_rounds(optimizer).rounds


def _statistics(optimizer: Any) -> RoundStatistics:
    """Which workers were in which partial round or late."""
    return _need_rounds(optimizer).statistics


def _need_rounds(optimizer: Any) -> PartialLists:
    rounds = rounds_of(optimizer)
    if rounds is None:
        raise InvalidArgumentError(f"{optimizer.name!r} was wrapped with sync='full'")
    if keras.backend.backend() == "jax":
        import jax

        jax.effects_barrier()  # programs may still make rounds
    return rounds.lists


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
            return gradients  # Keras raises an error for an optimizer that is not built.
        variables = optimizer._trainable_variables
    return getattr(optimizer, _AVERAGER).average(gradients, list(variables))


def _refuse_copies(optimizer: Any) -> None:
    """Raises InvalidArgumentError if copy.copy or copy.deepcopy asks for the optimizer's config.

    Keras copies a model or an optimizer like a saved one, from its config.
    """
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        if frame.f_code.co_name == "__reduce__" and caller.f_globals.get("__name__") == "copy":
            raise _no_copies(optimizer)
        frame = caller


def _no_copies(optimizer: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"copies of the DistributedOptimizer {optimizer.name!r} would not average gradients. Copy "
        "a model with keras.models.clone_model(model) and set_weights(), or copy the optimizer "
        "before you wrap it, and wrap the copy, too"
    )


def _require_outermost(optimizer: Any) -> None:
    """Raises InvalidArgumentError if a LossScaleOptimizer calls this optimizer.

    The LossScaleOptimizer would check only this rank's own gradients for overflow, so some ranks
    would skip a step that others take.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(40):  # A LossScaleOptimizer would be only a few frames up.
        frame = None if frame is None else frame.f_back
        if frame is None:
            return
        if frame.f_globals.get("__name__") != keras.optimizers.LossScaleOptimizer.__module__:
            continue  # Reading the variables of the user's frames would keep them alive.
        caller = frame.f_locals.get("self")
        if (
            caller is not optimizer
            and isinstance(caller, keras.optimizers.LossScaleOptimizer)
            and caller.inner_optimizer is optimizer
        ):
            raise InvalidArgumentError(
                "a LossScaleOptimizer wraps the DistributedOptimizer, so each rank would look "
                "for overflow in its own gradients only. compile() adds one under mixed_float16; "
                "to avoid that, wrap the optimizer yourself in the opposite order: "
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
            )
