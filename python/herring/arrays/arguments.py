"""Checks the values that callers pass before the core sees them; each kind has one function.

Each raises InvalidArgumentError, whose message names the argument, its value and what is allowed.
Without these checks a value of a wrong type would end in a TypeError of the bindings, which shows
the signature of a function that no caller knows.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from herring import _core
from herring.errors import ConfigurationError, InvalidArgumentError

#: The name of an operator.
Operator: TypeAlias = Literal["average", "sum", "min", "max", "product"]

#: The type of an array that a collective changes in place and returns.
Array = TypeVar("Array")

#: A time limit that `seconds_of` takes.
Timeout: TypeAlias = float | str | datetime.timedelta | None

_LONGEST_NAME = 512  # bytes of UTF-8
# Maps torch's operators to Herring's; torch's other operators have no counterpart here.
_OF_TORCH: dict[str, Operator] = {
    "SUM": "sum",
    "AVG": "average",
    "MIN": "min",
    "MAX": "max",
    "PRODUCT": "product",
}
_OPERATORS = tuple(_OF_TORCH.values())


def seconds_of(timeout: Timeout, what: str = "timeout") -> float:
    """Returns a timeout in seconds; 0 means that none was given.

    Args:
      timeout: A number of seconds, a text such as ``"5s"`` or ``"2m"`` (as in settings), a
        `datetime.timedelta`, or None.
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


def operator_of(op: Any) -> Operator:
    """Returns the name of an operator."""
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
    """Returns the name of an operation, or None if `name` is None or empty."""
    if name is None or (type(name) is str and not name):
        return None
    if not isinstance(name, str):
        raise InvalidArgumentError(f"{what} is {shown(name)}; it must be a text, or None")
    if not _encodable(name):
        raise InvalidArgumentError(
            f"{what} is {shown(name)}; it contains a surrogate, which UTF-8 cannot encode"
        )
    size = len(name.encode())
    if size > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"{what} has {size} bytes; 1 to {_LONGEST_NAME} are allowed: {name[:40]!r} ..."
        )
    return name


def text_of(value: Any, what: str, allowed: Sequence[str] = ()) -> str:
    """Returns `value` if it is a text and, where `allowed` is given, one of these."""
    if isinstance(value, str) and (value in allowed or (not allowed and _encodable(value))):
        return value
    expected = f"one of {', '.join(map(repr, allowed))}" if allowed else "a text"
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be {expected}")


def number_of(value: Any, what: str) -> float:
    """Returns a number as a float."""
    if type(value) is float:
        return value
    try:
        if not isinstance(value, (str, bytes, bytearray, bool)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be a number")


def count_of(value: Any, what: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Returns an integer from `least` to `most`."""
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
    """Returns a rank, checked against the number of ranks."""
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
    """Returns the options of a collective, each in the form that the core takes.

    Args:
      group: The group that takes part; None means all ranks of the job.

    Raises:
      InvalidArgumentError: An option has a wrong value; the message names the option, its value and
        the allowed values.
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
    """Returns a Boolean, which may be NumPy's or a framework's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be True or False")


def function_of(value: Any, what: str) -> Callable[..., Any]:
    """Returns `value` if it can be called."""
    if callable(value):
        return value
    raise InvalidArgumentError(f"{what} is {shown(value)}; it must be a function")


def _encodable(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def shown(value: Any) -> str:
    """Returns a value as an error shows it: short, even if its repr is long or fails."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    if not text or len(text) > 120 or "\n" in text:
        return f"a value of type {type(value).__name__}"
    return text
