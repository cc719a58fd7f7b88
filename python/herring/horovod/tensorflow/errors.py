"""Converts errors of eager calls to errors that are also the TensorFlow errors Horovod raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from herring.errors import HerringError, InvalidArgumentError, MismatchError

# `tensorflow_errors` uses the first class that matches.
_KINDS = (
    (MismatchError, tf.errors.FailedPreconditionError),
    (InvalidArgumentError, tf.errors.InvalidArgumentError),
)
_classes: dict[tuple[type, type], type] = {}


def _combined(ours: type, theirs: type) -> Any:
    def init(self: Any, text: str) -> None:
        theirs.__init__(self, None, None, text)  # type: ignore[misc]

    names = {
        "__doc__": ours.__doc__,
        "__init__": init,
        "__reduce__": lambda self: (_error, (ours, theirs, self.message), vars(self)),
    }
    known = _classes.get((ours, theirs))
    if known is None:
        known = _classes[ours, theirs] = type(ours.__name__, (ours, theirs), names)
    return known


def _error(ours: type, theirs: type, text: str) -> Any:
    return _combined(ours, theirs)(text)


@contextmanager
def tensorflow_errors() -> Iterator[None]:
    """Makes mismatches between ranks and invalid arguments in the block TensorFlow errors, too.

    The errors derive from Herring's class and TensorFlow's. So ``except herring.MismatchError``,
    ``except HorovodInternalError`` and ``except tf.errors.FailedPreconditionError`` all catch a
    mismatch.
    """
    try:
        yield
    except HerringError as error:
        for kind, theirs in _KINDS:
            if isinstance(error, kind):
                raise _error(type(error), theirs, str(error)) from error
        raise
