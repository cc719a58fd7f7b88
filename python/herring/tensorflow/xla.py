"""Refuses functions that XLA will compile, because XLA cannot call functions of the host."""

from __future__ import annotations

import sys
from types import FrameType

from herring.errors import InvalidArgumentError

XLA_ADVICE = (
    "XLA cannot call Herring from a compiled function: pass jit_compile=False to "
    "model.compile(), or to the tf.function that averages gradients. On GPUs Keras chooses "
    "jit_compile=True unless told otherwise. Parts without averaging, such as the forward and "
    "backward pass in a tf.function of their own, may stay compiled"
)


def refuse_xla(name: str) -> None:
    """Raises InvalidArgumentError if XLA will compile a function that is being traced.

    Without this check TensorFlow says "Detected unsupported operations" at the first run.
    """
    # Both tf.function and Keras' trainer keep the user's choice in this attribute; there is no
    # public way to ask during tracing.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", None) is True:
            raise InvalidArgumentError(f"{name}: {XLA_ADVICE}")
        frame = frame.f_back
