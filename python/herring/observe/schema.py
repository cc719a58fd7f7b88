"""The JSON of a status, as rank 0 of a job writes it (docs/how-to/status.md)."""

from __future__ import annotations

import json
import re
from typing import Any

from herring.base.version import version
from herring.errors import HerringError

SCHEMA = "herring-status-1"

_NUMBER = (int, float)


def _all(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


_COMMON = {
    **_all(str, "host address state cause"),
    **_all(int, "node pid bytes_sent bytes_received in_flight retransmits memory"),
    **_all(_NUMBER, "heard rtt"),
    "outlier": bool,
}
_RANK = {
    **_COMMON,
    **_all(str, "where stack"),
    **_all(int, "rank rounds calls credit kept major_faults"),
    **_all(_NUMBER, "for score compute wait clock_offset clock_error"),
    "chronic": bool,
    "late": {"median": _NUMBER, "max": _NUMBER, "share": _NUMBER, "steps": int},
}
_SERVER = {**_COMMON, "server": int, "kind": str, **_all(_NUMBER, "weight lost replaced")}
_GROUP = {
    "name": str,
    **_all(int, "group size rounds calls in_flight"),
    **_all([int], "ranks absent"),
    "for": _NUMBER,
    "outlier": bool,
}
_STATUS = {
    **_all(str, "herring job id slurm_job_id"),
    **_all(_NUMBER, "time uptime"),
    **_all(int, "size nodes epoch servers_to_spare"),
    "steps": {
        "count": int,
        "stands": bool,
        "seconds": _all(_NUMBER, "min median max"),
        **_all(_NUMBER, "per_second last compute node_stage push pull wait_for_ranks exposed"),
    },
    "binds": {"share": _NUMBER, **_all(str, "what who advice")},
    "ranks": [_RANK],
    "servers": [_SERVER],
    "missing": [{"what": str, "for": _NUMBER, "ranks": [int], "by": int}],
    "groups": [_GROUP],
    "operations": [
        {"collective": str, "message_size": str, "ended": int, "bytes": int, "seconds": _NUMBER}
    ],
    "findings": [str],
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
_MOST_NUMBER = 1 << 64
_KINDS = {str: "a text", bool: "true or false", int: "an integer", _NUMBER: "a number"}


class StatusError(HerringError):
    """A status cannot be had, or cannot be read; the message says why, and what to do."""


def parse(text: str, where: str) -> dict[str, Any]:
    """Returns a status with every field of the schema.

    A field that the text lacks is None, and a list that it lacks is empty. Fields that this version
    does not know are kept. Control characters in texts become blanks, because a terminal would
    obey them.

    Raises:
      StatusError: The text is not a status, or has a schema that this version does not know.
    """
    try:
        status = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise StatusError(f"{where} does not hold a status of a job: it is not JSON") from None
    found = status.get("schema") if isinstance(status, dict) else None
    if not isinstance(found, str):
        raise StatusError(f"{where} does not hold a status of a job: it has no 'schema'")
    if found != SCHEMA:
        raise StatusError(
            f"{where} has the schema {clean(found)[:60]!r}, but Herring {version()} reads "
            f"{SCHEMA!r}: use the 'herring' of the job's version "
            f"({clean(str(status.get('herring')))[:60]})"
        )
    return {"schema": found, **_shaped(status, _STATUS, "", where)}


def _shaped(value: Any, shape: Any, field: str, where: str) -> Any:
    """Returns a value of the JSON in the shape that the schema gives it."""
    if isinstance(shape, dict):
        if not isinstance(value, dict | None):
            raise _wrong(field, "an object", where)
        value = value or {}
        known = {
            name: _shaped(value.get(name), inner, f"{field}.{name}" if field else name, where)
            for name, inner in shape.items()
        }
        return {**value, **known}
    if isinstance(shape, list):
        if not isinstance(value, list | None):
            raise _wrong(field, "a list", where)
        found = [
            _shaped(each, shape[0], f"{field}[{index}]", where)
            for index, each in enumerate(value or [])
        ]
        return [each for each in found if each is not None]
    if value is None:
        return None
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        raise _wrong(field, _KINDS[shape], where)
    if shape in (int, _NUMBER) and not abs(value) <= _MOST_NUMBER:
        raise _wrong(field, f"{_KINDS[shape]} that a job can have", where)
    return clean(value) if shape is str else value


def _wrong(field: str, kind: str, where: str) -> StatusError:
    return StatusError(f"{where} does not hold a status of a job: its '{field}' is not {kind}")


def clean(text: str) -> str:
    """Returns a text of somebody else without what a terminal would obey."""
    return _CONTROL.sub(" ", text).encode(errors="replace").decode()
