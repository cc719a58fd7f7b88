"""What callers pass, checked before the core sees it: each value by one function, in words.

Without these checks a value of a wrong type ends in the bindings' own TypeError, which shows the
signature of a function that no caller knows.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Sequence
from typing import Any

from herring import _core
from herring.errors import ConfigurationError, InvalidArgumentError

__all__ = [
    "boolean_of",
    "count_of",
    "function_of",
    "name_given",
    "number_of",
    "operator_of",
    "options_of",
    "rank_of",
    "seconds_of",
    "shown",
    "text_of",
]

_LONGEST_NAME = 512  # bytes of UTF-8
# torch's operators by their names; the others have no counterpart in an all-reduce of Herring's.
_OF_TORCH = {"SUM": "sum", "AVG": "average", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
_OPERATORS = tuple(_OF_TORCH.values())


def seconds_of(timeout: Any, what: str = "timeout") -> float:
    """A time-out in seconds; 0: none was given.

    Args:
      timeout: seconds as a number, a text such as ``"5s"`` or ``"2m"`` (as settings take it), a
        `datetime.timedelta`, or None.
      what: the name of the argument, for the error.

    Raises:
      InvalidArgumentError: something else, or not more than 0.
    """
    if timeout is None:
        return 0.0
    seconds: Any = timeout
    if isinstance(timeout, str):
        try:
            seconds = _core.parse_seconds(timeout)
        except (ConfigurationError, TypeError):
            seconds = -1.0
    elif isinstance(timeout, datetime.timedelta):
        seconds = timeout.total_seconds()
    try:
        if not isinstance(timeout, (bytes, bool)) and seconds > 0:
            return float(seconds)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InvalidArgumentError(
        f"{what} is {shown(timeout)}; it must be more than 0 seconds: a number, a text such as "
        "'5s' or '2m', or None"
    )


def operator_of(op: Any) -> str:
    """The name of an operator; torch's operators are taken by their names.

    Args:
      op: a name, or one of `torch.distributed.ReduceOp`.

    Raises:
      InvalidArgumentError: no operator of an all-reduce.
    """
    if type(op) is str and op in _OPERATORS:
        return op
    of_torch = type(op).__module__.startswith("torch.") and hasattr(type(op), "PREMUL_SUM")
    if of_torch:
        known = _OF_TORCH.get(str(getattr(op, "op", op)).rpartition(".")[2])
        if known is not None:
            return known
    also = ", or the torch.distributed.ReduceOp of that name" if of_torch else ""
    raise InvalidArgumentError(
        f"op is {shown(op)}; it must be one of {', '.join(map(repr, _OPERATORS))}{also}"
    )


def name_given(name: Any, what: str = "name") -> str | None:
    """The name of an operation; None and an empty text: none was given.

    Raises:
      InvalidArgumentError: no text, a text that is too long, or one without an encoding.
    """
    if name is None or (type(name) is str and not name):
        return None
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{what} is {shown(name)}; it must be a text, or None")
    if not _encodable(name):
        raise InvalidArgumentError(
            f"{what} is {shown(name)}; it has a surrogate, which no UTF-8 text has"
        )
    size = len(name.encode())
    if size > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"{what} has {size} bytes; 1 to {_LONGEST_NAME} are allowed: {name[:40]!r} ..."
        )
    return name


def text_of(value: Any, what: str, allowed: Sequence[str] = ()) -> str:
    """A text, one of `allowed` if there are any.

    Raises:
      InvalidArgumentError: something else.
    """
    if isinstance(value, str) and (value in allowed or (not allowed and _encodable(value))):
        return value
    expected = f"one of {', '.join(map(repr, allowed))}" if allowed else "a text"
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be {expected}")


def number_of(value: Any, what: str) -> float:
    """A number as a float.

    Raises:
      InvalidArgumentError: no number.
    """
    if type(value) is float:
        return value
    try:
        if not isinstance(value, (str, bytes, bytearray, bool)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be a number")


def count_of(value: Any, what: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """An integer from `least` to `most`.

    Raises:
      InvalidArgumentError: something else.
    """
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):
        number = None
    if number is None or not least <= number <= most:
        raise InvalidArgumentError(
            f"{what} is {shown(value)}; it must be an integer from {least} to {most}"
        )
    return number


def rank_of(root: Any, size: int, kind: str = "", group: Any = None, what: str = "root") -> int:
    """A rank of a job, or of a group, with `size` ranks.

    Args:
      root: the rank.
      size: how many there are.
      kind: of the operation, for the error.
      group: inside which the ranks are; None: the job.
      what: the name of the argument.

    Raises:
      InvalidArgumentError: no such rank.
    """
    try:
        rank = operator.index(root)
    except (TypeError, RuntimeError):
        rank = -1
    if not 0 <= rank < size:
        of = "the job's ranks" if group is None else f"ranks inside group '{group.name}'"
        are = f"are 0 to {size - 1}" if size > 1 else "are only 0"
        before = f"{kind}: " if kind else ""
        raise InvalidArgumentError(f"{before}{what} is {shown(root)}; {of} {are}")
    return rank


def options_of(kind: str, options: dict[str, Any], size: int, group: Any) -> dict[str, Any]:
    """The options of a collective, each as the core takes it.

    Args:
      kind: of the operation, for errors.
      options: by name; changed.
      size: how many ranks take part.
      group: these; None: those of the job.

    Raises:
      InvalidArgumentError: names the option, its value and what is allowed.
    """
    if "op" in options:
        options["op"] = operator_of(options["op"])
    for what in ("prescale", "postscale"):
        if what in options:
            options[what] = number_of(options[what], what)
    if "root" in options:
        options["root"] = rank_of(options["root"], size, kind, group)
    if "algorithm" in options:
        text_of(options["algorithm"], "algorithm")
    return options


def boolean_of(value: Any, what: str) -> bool:
    """True or False.

    Raises:
      InvalidArgumentError: something else.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be True or False")


def function_of(value: Any, what: str) -> Callable[..., Any]:
    """Something that can be called.

    Raises:
      InvalidArgumentError: something else.
    """
    if callable(value):
        return value
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be a function")


def _encodable(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def shown(value: Any) -> str:
    """A value as an error shows it: short, and whatever its repr does."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    if not text or len(text) > 120 or "\n" in text:
        return f"a value of type {type(value).__name__}"
    return text
