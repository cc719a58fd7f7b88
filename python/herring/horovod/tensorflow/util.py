"""The functions of ``horovod.tensorflow.util`` that scripts use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def vars_to_refs(vars: Any) -> Any:
    """Returns hashable references to a variable, or to the variables in a list."""
    if isinstance(vars, list):
        return tuple(vars_to_refs(one) for one in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Returns the variable, or the list of variables, that `vars_to_refs` was called with."""
    if isinstance(refs, tuple):
        return [refs_to_vars(one) for one in refs]
    return refs.deref()
