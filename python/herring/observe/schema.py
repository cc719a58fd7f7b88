"""The JSON of a status, as rank 0 of a job writes it (docs/how-to/status.md)."""

from __future__ import annotations

import json
import re
from typing import Any

from herring.base.version import version
from herring.errors import HerringError

SCHEMA = "herring-status-1"

_NUMBER = (int, float)
_LATE = {"median": _NUMBER, "max": _NUMBER, "share": _NUMBER, "steps": int}
_RANK = {
    "rank": int,
    "host": str,
    "address": str,
    "node": int,
    "pid": int,
    "state": str,
    "where": str,
    "for": _NUMBER,
    "stack": str,
    "heard": _NUMBER,
    "late": _LATE,
    "score": _NUMBER,
    "cause": str,
    "chronic": bool,
    "outlier": bool,
    "rounds": int,
    "calls": int,
    "in_flight": int,
    "compute": _NUMBER,
    "wait": _NUMBER,
    "bytes_sent": int,
    "bytes_received": int,
    "retransmits": int,
    "rtt": _NUMBER,
    "credit": int,
    "kept": int,
    "memory": int,
    "major_faults": int,
    "clock_offset": _NUMBER,
    "clock_error": _NUMBER,
}
_SERVER = {
    "server": int,
    "kind": str,
    "host": str,
    "address": str,
    "node": int,
    "pid": int,
    "state": str,
    "heard": _NUMBER,
    "weight": _NUMBER,
    "lost": _NUMBER,
    "replaced": _NUMBER,
    "bytes_sent": int,
    "bytes_received": int,
    "in_flight": int,
    "retransmits": int,
    "rtt": _NUMBER,
    "memory": int,
    "outlier": bool,
    "cause": str,
}
_GROUP = {
    "group": int,
    "name": str,
    "size": int,
    "ranks": [int],
    "rounds": int,
    "calls": int,
    "in_flight": int,
    "for": _NUMBER,
    "absent": [int],
    "outlier": bool,
}
_STATUS = {
    "herring": str,
    "job": str,
    "id": str,
    "slurm_job_id": str,
    "time": _NUMBER,
    "uptime": _NUMBER,
    "size": int,
    "nodes": int,
    "epoch": int,
    "servers_to_spare": int,
    "steps": {
        "count": int,
        "per_second": _NUMBER,
        "last": _NUMBER,
        "stands": bool,
        "seconds": {"min": _NUMBER, "median": _NUMBER, "max": _NUMBER},
        "compute": _NUMBER,
        "node_stage": _NUMBER,
        "push": _NUMBER,
        "pull": _NUMBER,
        "wait_for_ranks": _NUMBER,
        "exposed": _NUMBER,
    },
    "binds": {"what": str, "share": _NUMBER, "who": str, "advice": str},
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
