"""Collectives on objects: programs' own, by pickle or JSON, and Herring's own, as plain data.

Whoever unpickles bytes runs the code that they name, so with pickle every rank trusts all others.
``HERRING_OBJECTS`` restricts programs to what JSON can carry, or to no objects at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from herring.arrays import plain
from herring.arrays.arguments import Timeout, rank_of
from herring.arrays.calls import CallOptions
from herring.arrays.collectives import broadcast, collect
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import job
from herring.base import pickling
from herring.errors import ConfigurationError, HerringError, InvalidArgumentError, MismatchError

__all__ = ["allgather_object", "broadcast_object"]

_DEEPEST = 200  # containers inside one another; Python's reader of JSON stops somewhat later


class _Form(NamedTuple):
    """The form in which an object travels."""

    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


def _refuse_json(kind: str, place: str, what: str) -> None:
    raise InvalidArgumentError(
        f"{kind}: {place} is {what}; with HERRING_OBJECTS=json an object may have None, bool, int, "
        "float (finite), str, and list and dict (with keys of type str) of these. Send arrays and "
        "tensors with broadcast() and allgather()"
    )


def _require_exact(kind: str, value: Any, place: str, depth: int = 0) -> None:
    """Refuses what JSON would change: what arrives must be equal, with the same types."""
    of = type(value)
    if value is None or of is bool:
        return
    if of is int:
        try:
            str(value)
        except ValueError:  # Python's limit of digits
            _refuse_json(kind, place, "an int with too many digits")
    elif of is float:
        if not math.isfinite(value):
            _refuse_json(kind, place, f"{value}")
    elif of is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse_json(kind, place, "a str with half of a surrogate pair")
    elif of is list or of is dict:
        if depth == _DEEPEST:
            _refuse_json(kind, place, f"more than {_DEEPEST} levels deep")
        for key, item in value.items() if of is dict else enumerate(value):
            if of is dict:
                if type(key) is not str:
                    _refuse_json(kind, f"a key of {place}", f"of type {_name_of(type(key))}")
                _require_exact(kind, key, f"a key of {place}")
            _require_exact(kind, item, f"{place}[{key!r:.40}]", depth + 1)
    else:
        _refuse_json(kind, place, f"of type {_name_of(of)}")


def _name_of(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )


def _form(kind: str) -> _Form:
    """Returns how programs' objects travel."""
    mode = job().objects
    if mode == "pickle":
        return _Form(pickling.dumps, pickling.loads)
    if mode == "none":
        raise ConfigurationError(
            f"{kind}: HERRING_OBJECTS=none lets programs send no objects; send arrays with "
            "broadcast() and allgather(), or set HERRING_OBJECTS to json or pickle on all ranks"
        )

    def pack(obj: Any) -> bytes:
        _require_exact(kind, obj, "obj")
        return json.dumps(obj, separators=(",", ":")).encode()

    def unpack(data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise HerringError(f"{kind}: a rank has sent what is not JSON ({error})") from None

    return _Form(pack, unpack)


def may_pickle() -> bool:
    """Returns whether this job's ranks unpickle what other ranks send."""
    return job().objects == "pickle"


def broadcast_object(
    obj: Any = None,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Any:
    """Hands an object of rank `root` to every rank.

    The object travels **by pickle**, and whoever unpickles bytes runs what they name: every rank
    trusts `root`, which has proved that it knows the job's secret. With ``HERRING_OBJECTS=json``
    nothing is pickled, and only what JSON can carry exactly is sent: None, bool, int, finite float,
    str, and lists and dictionaries (with texts as keys) of these. With ``HERRING_OBJECTS=none``
    nothing is sent.

    Args:
      obj: The object to send; read on the root only. If pickle cannot take it, as with a lambda,
        cloudpickle is used where it is installed.
      root: The rank that sends the object; with `group`, a rank inside it.

    Returns:
      The object; on the root `obj` itself.

    Raises:
      ConfigurationError: ``HERRING_OBJECTS`` is none.
      InvalidArgumentError: An argument cannot be used on some rank, or JSON cannot carry `obj`.
    """
    form = _form("broadcast_object")
    call = CallOptions(name, timeout, group).named("broadcast_object")
    return _broadcast(form, obj, root, call)


def broadcast_plain(
    value: Any,
    root: int = 0,
    *,
    name: str,
    timeout: Timeout = None,
    group: Group | None = None,
    lift: plain.Lift | None = None,
    lower: plain.Lower | None = None,
) -> Any:
    """Hands plain data of rank `root` to every rank, without pickle (see `plain.packed`)."""
    form = _Form(lambda data: plain.packed(data, lift), lambda data: plain.unpacked(data, lower))
    return _broadcast(form, value, root, CallOptions(name, timeout, group))


def _broadcast(form: _Form, obj: Any, root: int, call: CallOptions) -> Any:
    group = call.group
    with call.part("length").refusing("broadcast"):
        scope = scope_of(group)
        sending = rank_of(root, scope.size, "broadcast_object", group) == scope.rank
        data = np.frombuffer(form.pack(obj) if sending else b"", np.uint8).copy()
    length = np.array([len(data)], np.int64)
    broadcast(length, root, name=f"{call.name}.length", timeout=call.timeout, group=group)
    if not sending:
        with call.part("bytes").refusing("broadcast"):  # there may be no memory for it
            data = np.empty(int(length[0]), np.uint8)
    broadcast(data, root, name=f"{call.name}.bytes", timeout=call.timeout, group=group)
    return obj if sending else form.unpack(data.tobytes())


def allgather_object(
    obj: Any, *, name: str | None = None, timeout: Timeout = None, group: Group | None = None
) -> list[Any]:
    """Hands an object of every rank to every rank.

    The objects travel **by pickle**, and whoever unpickles bytes runs what they name: every rank
    trusts all others. With ``HERRING_OBJECTS=json`` nothing is pickled, and only what JSON can
    carry exactly is sent: None, bool, int, finite float, str, and lists and dictionaries (with
    texts as keys) of these. With ``HERRING_OBJECTS=none`` nothing is sent.

    Args:
      obj: The object to send.

    Returns:
      The objects in rank order.

    Raises:
      ConfigurationError: ``HERRING_OBJECTS`` is none.
      InvalidArgumentError: An argument cannot be used on some rank, or JSON cannot carry `obj`.
    """
    form = _form("allgather_object")
    return _allgather(form, obj, CallOptions(name, timeout, group).named("allgather_object"))


def allgather_plain(value: Any, *, name: str, group: Group | None = None) -> list[Any]:
    """Hands plain data of every rank to every rank, without pickle (see `plain.packed`)."""
    return _allgather(_Form(plain.packed, plain.unpacked), value, CallOptions(name, group=group))


def _allgather(form: _Form, obj: Any, call: CallOptions) -> list[Any]:
    with call.refusing("allgather"):
        data = np.frombuffer(form.pack(obj), np.uint8).copy()
    operation, flat = collect("allgather", data, call)
    objects, start = [], 0
    for length in operation.counts:
        objects.append(form.unpack(flat[start : start + length].tobytes()))
        start += length
    return objects


def check_same(what: str, value: Any, *, name: str, group: Group | None = None) -> None:
    """Raises MismatchError on every rank unless `value` (plain data) is equal on all of them."""
    require_same(what, allgather_plain(value, name=name, group=group), group)


def require_same(what: str, values: list[Any], group: Group | None = None) -> None:
    """Raises MismatchError unless the values of all ranks, in rank order, are equal."""
    if any(one != values[0] for one in values):
        ranks = range(len(values)) if group is None else group.ranks
        listed = "; ".join(f"rank {rank}: {one}" for rank, one in zip(ranks, values))
        raise MismatchError(
            f"ranks disagree about {what}: {listed}. Every rank must pass the same; look for code "
            "that depends on the rank"
        )
