"""Finds the error of Herring behind the one that a framework raises in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from herring.errors import PeerLostError, TimeoutError

Loss = PeerLostError | TimeoutError

# Adapters add functions that return the loss behind an error of their framework, or else None.
translations: list[Callable[[Exception], Loss | None]] = []


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raises the loss of a worker as such where a framework has made another error of it."""
    try:
        yield
    except Exception as error:
        for translate in translations:
            if (own := translate(error)) is not None:
                raise own from error
        raise
