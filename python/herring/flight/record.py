"""A flight record as objects: the latest entries of every process of a job, on one clock."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from herring.errors import ConfigurationError

SCHEMA = "herring-flight-1"
_KINDS = ("round", "buffer", "call", "sum")
_NUMBERS = ("id", "group", "stream", "round", "buffer", "bytes")
_MOMENTS = ("called", "ready", "reduced", "pushed", "summed", "done")
_TEXTS = ("kind", "host", "state", "where", "stack", "failure")
_CALL = re.compile(r"([a-z_]+) '")
_SILENT = re.compile(r"(rank|server) (\d{1,7}): (.+)", re.DOTALL)
# A terminal would obey these characters.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
# Beyond these, a file is not a flight record. One of 65,536 ranks has some 800 MB.
_MOST_BYTES = 1 << 30
_MOST_RANKS = 1 << 20
_MOST_UNTOLD = 4096  # ranks of which a record says nothing; one of this version has none
_MOST_NUMBER = 1 << 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """One piece of work of a process."""

    id: int  # counts the entries of the process from 1 on
    kind: str  # "round" of a plan, its fusion "buffer", a named "call", or the "sum" of a server
    name: str  # the name of the plan or the call
    group: int = 0  # the number of the group; 0 means all ranks
    stream: int = 0  # the number of the plan
    round: int = 0  # The number of the round. Of a call, it says only where its data went.
    buffer: int = 0  # the number of the fusion buffer
    bytes: int = 0  # the size of this rank's data
    # When the program began it. All times are seconds since 1970 on rank 0's clock; None if that
    # moment was not reached.
    called: float | None = None
    # When this rank had given all its data; on a server, when the last rank's data came.
    ready: float | None = None
    reduced: float | None = None  # when the node had combined this rank's part
    pushed: float | None = None  # when all of this rank's bytes were handed to the system
    summed: float | None = None  # when the server had combined the last segment
    done: float | None = None  # when the result was in place, or when the operation failed
    waited: float = 0.0  # how long the program waited, in seconds
    # "ok", the kind of failure such as "timeout", or None if it has not ended.
    outcome: str | None = None
    collective: str = ""  # the collective if the record has it, else ""
    # Of a call among those of its name on this rank; 0 if no other one has the name.
    number: int = 0

    @property
    def place(self) -> int:
        """The number of the round, or of the call among those of its name."""
        return self.number if self.kind == "call" else self.round

    @property
    def finished(self) -> bool:
        """Whether the entry has ended well."""
        return self.outcome == "ok"


@dataclasses.dataclass(frozen=True)
class Process:
    """What a record has of one rank or server."""

    kind: str  # "rank" or "server"
    index: int  # the number of the rank or the server
    host: str = ""  # the name of its host
    pid: int = 0  # the number of the process
    state: str = ""  # "computing", "waiting", "stopped", "silent", "unreachable", "left", "lost"
    where: str = ""  # what it waits in, such as "waits in allreduce 'x'"
    seconds: float = 0.0  # for how long it has been in this state
    stack: str = ""  # where its program was, such as "train.py:40 in load"
    failure: str = ""  # the text of its failure; empty if it has not failed
    entries: tuple[Entry, ...] = ()  # its latest entries, in the order of their begin


@dataclasses.dataclass(frozen=True)
class Missing:
    """What the job's servers told about ranks that had not come."""

    what: str  # the operation, such as "'resnet' (round 7)"
    seconds: float  # how long others had waited
    ranks: tuple[int, ...]  # the ranks that had not come


@dataclasses.dataclass(frozen=True)
class Record:
    """A whole flight record."""

    herring: str  # the version of Herring that wrote it
    job: str  # the job's name
    time: float  # when it was written, in seconds since 1970
    why: str  # the failure or the request that it was written for
    size: int  # the number of ranks in the job
    ranks: Mapping[int, Process]  # the ranks whose record came, by number
    servers: Mapping[int, Process]  # the servers whose record came, by number
    missing: tuple[Missing, ...] = ()  # which ranks the servers waited for
    # What is known about processes that did not answer, by kind and number.
    silent: Mapping[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    # The ranks of groups if the record has them, by the group's number.
    groups: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # Their names, if the record has these.
    group_names: Mapping[int, str] = dataclasses.field(default_factory=dict)


class _Wrong(Exception):
    """Says what in a document is not as in a flight record."""


def read(path: Path) -> Record:
    """Reads the file at `path`; raises ConfigurationError if it is not a flight record."""
    try:
        with path.open("rb") as file:
            large = os.fstat(file.fileno()).st_size > _MOST_BYTES
            content = b"" if large else file.read(_MOST_BYTES + 1)
        if large or len(content) > _MOST_BYTES:
            raise ConfigurationError(f"{path} is not a flight record: more than 1 GiB")
        document = json.loads(content, parse_constant=lambda _: None)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        cut = "" if content.rstrip().endswith(b"}") else "; it may have been cut off"
        raise ConfigurationError(
            f"{path} is not a flight record: not JSON ({error}){cut}"
        ) from None
    return parse(document, str(path))


def parse(document: Any, name: str = "the document") -> Record:
    """Makes a record of a parsed JSON document; ConfigurationError names a wrong value."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ConfigurationError(
            f"{name} is not a flight record that this version can read: its schema is "
            f"{_shown(schema)}, expected {SCHEMA!r}"
        )
    try:
        return _record(document)
    except _Wrong as wrong:
        raise ConfigurationError(f"{name} is not a valid flight record: {wrong}") from None


def _record(document: dict[str, Any]) -> Record:
    processes = [_process(one) for one in _list(document, "processes")]
    missing = [
        Missing(_text(one, "what"), _number(one, "for"), _integers(one, "ranks"))
        for one in _list(document, "missing")
    ]
    silent = {}
    lines = document.get("silent") or []
    if not isinstance(lines, list):
        raise _Wrong(f"'silent' is {_shown(lines)}; expected a list of texts")
    for line in lines:
        if match := _SILENT.fullmatch(str(line)):
            silent[match[1], int(match[2])] = _CONTROL.sub(" ", match[3])
    size = _integer(document, "size", _MOST_RANKS)
    if size > len(processes) + len(silent) + _MOST_UNTOLD:
        raise _Wrong(f"'size' is {size}, but there are {len(processes)} processes")
    told = [one.index for one in processes if one.kind == "rank"]
    told += [rank for one in missing for rank in one.ranks]
    if told and max(told) >= size:
        raise _Wrong(f"'size' is {size}, but there is rank {max(told)}")
    return Record(
        herring=_text(document, "herring"),
        job=_text(document, "job"),
        time=_number(document, "time"),
        why=_text(document, "why"),
        size=size,
        ranks={one.index: one for one in processes if one.kind == "rank"},
        servers={one.index: one for one in processes if one.kind == "server"},
        missing=tuple(missing),
        silent=silent,
        groups={
            _integer(one, "group"): _integers(one, "ranks")
            for one in _list(document, "groups")
            if _integers(one, "ranks")
        },
        group_names={
            _integer(one, "group"): name
            for one in _list(document, "groups")
            if (name := _text(one, "name"))
        },
    )


def _process(one: dict[str, Any]) -> Process:
    kind = _text(one, "kind")
    if kind not in ("rank", "server"):
        raise _Wrong(f"the kind of a process is {_shown(kind)}; allowed are 'rank' and 'server'")
    entries = [_entry(entry) for entry in _list(one, "entries")]
    return Process(
        index=_integer(one, "index", _MOST_RANKS - 1),
        pid=_integer(one, "pid"),
        seconds=_number(one, "for"),
        entries=tuple(sorted(entries, key=lambda entry: entry.id)),
        **{key: _text(one, key) for key in _TEXTS},
    )


def _entry(one: dict[str, Any]) -> Entry:
    kind = _text(one, "kind")
    if kind not in _KINDS:
        raise _Wrong(f"the kind of an entry is {_shown(kind)}; allowed are {', '.join(_KINDS)}")
    moments: dict[str, Any] = {
        moment: None if one.get(moment) is None else _number(one, moment) for moment in _MOMENTS
    }
    name = _text(one, "name")
    return Entry(
        kind=kind,
        name=name,
        waited=_number(one, "waited"),
        outcome=_text(one, "outcome") or None,
        collective=_text(one, "collective") or _collective(kind, name),
        number=_integer(one, "number" if "number" in one else "round"),
        **{key: _integer(one, key) for key in _NUMBERS},
        **moments,
    )


def _collective(kind: str, name: str) -> str:
    """Returns the collective of a call, whose name begins with it: "allreduce 'loss'"."""
    match = _CALL.match(name) if kind == "call" else None
    return match[1] if match else ""


def _list(one: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = one.get(key)
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _Wrong(f"{key!r} is {_shown(value)}; expected a list of objects")
    return value


def _text(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    if value is not None and not isinstance(value, str):
        raise _Wrong(f"{key!r} is {_shown(value)}; expected text")
    return _CONTROL.sub(" ", value or "").encode(errors="replace").decode()


def _number(one: dict[str, Any], key: str) -> float:
    value = one.get(key)
    value = 0 if value is None else value
    sound = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not sound or not abs(value) < _MOST_NUMBER or not math.isfinite(value):
        raise _Wrong(f"{key!r} is {_shown(value)}; expected a number")
    return float(value)


def _integer(one: dict[str, Any], key: str, most: int = _MOST_NUMBER) -> int:
    value = one.get(key)
    value = 0 if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong(f"{key!r} is {_shown(value)}; expected an integer")
    if not 0 <= value <= most:
        raise _Wrong(f"{key!r} is {_shown(value)}; allowed are 0 to {most}")
    return value


def _integers(one: dict[str, Any], key: str) -> tuple[int, ...]:
    value = one.get(key)
    value = [] if value is None else value
    if not isinstance(value, list) or not all(
        isinstance(each, int) and 0 <= each < _MOST_RANKS for each in value
    ):
        raise _Wrong(f"{key!r} is {_shown(value)}; expected a list of ranks")
    return tuple(value)


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > _MOST_NUMBER:
        return "too large"  # Python refuses to write the largest
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
