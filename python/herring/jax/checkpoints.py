"""Makes `jax.checkpoint` keep the results of collectives instead of calling them again.

JAX runs what has an effect only once, and keeps its results, if the effect is of a type that it
allows there. The effects of foreign functions and of callbacks are not among these types. There is
no public way to add them. Before JAX 0.8, an operation under `custom_vmap` hides its effects, so
that JAX would run it again in the backward pass: collectives are refused there.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from herring.errors import InvalidArgumentError

_CHECKPOINTS = "jax._src.ad_checkpoint"  # the module that traces a function of jax.checkpoint


def keep_results(kind: str) -> None:
    """Prepares for a collective whose results `jax.checkpoint` must keep; called while tracing it.

    Raises:
      InvalidArgumentError: the collective is inside of `jax.checkpoint`, and this version of JAX
        would call it again in the backward pass.
    """
    if not _kept() and _in_checkpoint():
        raise InvalidArgumentError(
            f"herring.jax.{kind} cannot be inside of jax.checkpoint with JAX {jax.__version__}, "
            "which would call it again in the backward pass: use JAX 0.8 or newer, or apply "
            "jax.checkpoint to the parts before and after it"
        )


@functools.cache
def _kept() -> bool:
    """Lets JAX keep the results of collectives; returns whether it will."""
    one = jax.ShapeDtypeStruct((1,), np.float32)

    @jax.custom_batching.custom_vmap
    def collective(array: Any) -> Any:
        found = jax.ffi.ffi_call("herring", one, has_side_effect=True)(array)
        return io_callback(lambda array: array, one, found, ordered=True)

    collective.def_vmap(lambda *_: None)  # without a rule it cannot be called
    effects = jax.make_jaxpr(collective)(one).effects
    try:
        from jax._src.effects import remat_allowed_effects

        for effect in effects:
            remat_allowed_effects.add_type(type(effect))
    except (AttributeError, ImportError):  # private names of JAX, which may change
        return False
    return len(effects) == 2


def _in_checkpoint() -> bool:
    """Returns whether this thread traces a function of `jax.checkpoint`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _CHECKPOINTS:
            return True
        frame = frame.f_back
    return False
