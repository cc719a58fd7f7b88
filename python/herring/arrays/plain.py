"""Turns plain data into bytes and back; the bytes name no code, so they are safe to read.

Plain data are None, booleans, numbers, texts, bytes, and lists, tuples and dictionaries of these.
What ranks tell each other on Herring's own behalf is plain. Only objects of the program are pickled
(`herring.arrays.objects`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from herring.errors import HerringError, InvalidArgumentError

#: Returns a word and plain data for an object that is not plain.
Lift = Callable[[Any], tuple[str, Any]]
#: Returns the object for the word and the data of `Lift`.
Lower = Callable[[str, Any], Any]


def packed(value: Any, lift: Lift | None = None) -> bytes:
    """Returns plain data as bytes; `lift`, if not None, is called for what is not plain."""

    def described(one: Any) -> Any:
        kind = type(one)
        if one is None or kind in (bool, int, float, str):
            return one
        if kind is list:
            return [described(item) for item in one]
        if kind is tuple:
            return {"tuple": [described(item) for item in one]}
        if kind is dict:
            return {"dict": [[described(key), described(item)] for key, item in one.items()]}
        if kind is bytes:
            return {"bytes": base64.b64encode(one).decode()}
        if kind is complex:
            return {"complex": [one.real, one.imag]}
        if lift is None:
            raise InvalidArgumentError(f"{kind.__module__}.{kind.__qualname__} is not plain data")
        word, data = lift(one)
        return {word: described(data)}

    return json.dumps(described(value), separators=(",", ":")).encode()


def unpacked(data: bytes, lower: Lower | None = None) -> Any:
    """Returns the data that `packed` made bytes of; `lower` gets what `lift` has described."""

    def restored(one: Any) -> Any:
        if isinstance(one, list):
            return [restored(item) for item in one]
        if not isinstance(one, dict):
            return one
        ((word, content),) = one.items()
        if word == "tuple":
            return tuple(restored(item) for item in content)
        if word == "dict":
            return {restored(key): restored(item) for key, item in content}
        if word == "bytes":
            return base64.b64decode(content, validate=True)
        if word == "complex":
            real, imaginary = content
            return complex(real, imaginary)
        if lower is None:
            raise ValueError(f"{word!r} is unknown")
        return lower(word, restored(content))

    try:
        return restored(json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise HerringError(
            f"a rank has sent what this version of Herring does not understand ({error}); install "
            "the same Herring release everywhere"
        ) from None
