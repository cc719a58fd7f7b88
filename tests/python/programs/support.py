"""Helpers that the programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    text: str,
    call: Callable[..., Any],
    *arguments: Any,
    **options: Any,
) -> None:
    """Asserts that the call raises `kind`, or one of several kinds, with `text` in the error."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind} for {text}")
