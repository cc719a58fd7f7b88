"""Makes flight records of jobs that never ran, for tests of `herring.flight`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from herring.flight import report
from herring.flight.analysis import analyse
from herring.flight.record import Record, parse

START = 1_795_680_000.0


class Flight:
    """A job on a clock that begins at 0; `document` is the record that it would write.

    Args:
        size: The number of ranks.
        hosts: The number of hosts, among which the ranks are dealt out in blocks.
        servers: The number of dedicated servers.
        end: When the record is written.
    """

    def __init__(self, size: int = 4, hosts: int = 2, servers: int = 2, end: float = 30.0) -> None:
        self.size = size
        self.end = end
        self.why = "timeout"
        self.missing: list[dict[str, Any]] = []
        self.silent: list[str] = []
        self.groups: list[dict[str, Any]] = []
        self.ranks = [_process("rank", rank, f"host{rank * hosts // size}") for rank in range(size)]
        self.servers = [_process("server", one, f"server{one}") for one in range(servers)]

    def rank(self, rank: int, **values: Any) -> None:
        """Sets values of a rank's process, such as its state."""
        self.ranks[rank].update(values)

    def server(self, server: int, **values: Any) -> None:
        """Sets values of a server's process."""
        self.servers[server].update(values)

    def steps(self, count: int, name: str = "resnet", buffers: int = 2) -> float:
        """Adds rounds of a plan that end well, one each second; returns the time after them."""
        for number in range(count):
            self.round(name, number, 1.0 + number, buffers=buffers)
        return 1.0 + count

    def round(self, name: str, number: int, at: float, buffers: int = 0, **how: Any) -> None:
        """Adds a round of a plan with its fusion buffers and sums; see `add`."""
        self.add("round", name, at, number=number, buffers=buffers, **how)

    def call(self, name: str, at: float, number: int = 0, **how: Any) -> None:
        """Adds a named call with its sums; see `add`."""
        self.add("call", name, at, number=number, **how)

    def add(
        self,
        kind: str,
        name: str,
        at: float,
        *,
        number: int = 0,
        ranks: Collection[int] | None = None,
        ended: bool = True,
        size: int = 4096,
        group: int = 0,
        buffers: int = 0,
        outcome: str | None = None,
        but: Mapping[int, Mapping[str, Any]] | None = None,
        sums: Mapping[int, Mapping[str, Any] | None] | None = None,
        **more: Any,
    ) -> None:
        """Adds an operation that its ranks call one after the other.

        Args:
            kind: "round" or "call".
            name: The name of the plan or the call.
            at: When the first rank calls it.
            number: The number of the round or the call.
            ranks: The ranks that call it; None means all.
            ended: Whether it ends well. If not, all data are sent, and nothing is summed.
            size: Bytes of each rank.
            group: The number of the group.
            buffers: The number of fusion buffers.
            outcome: How it ends on all ranks if it does not end well.
            but: What is different on some ranks: moments (after `at`), "size" or "outcome".
            sums: What is different on some servers, likewise; None: this server has no sum.
            more: Further values of the ranks' entries.
        """
        base = {"name": name, "group": group, "round": number, "bytes": size, **more}
        listed = range(self.size) if ranks is None else ranks
        for rank in listed:
            moments = {"called": 0.001 * rank, "ready": 0.1, "reduced": 0.101, "pushed": 0.12}
            values = {**moments, "done": 0.15 if ended else None}
            values["outcome"] = "ok" if ended else outcome
            changed = {**values, **(but or {}).get(rank, {})}
            _append(self.ranks[rank], kind, {**base, **changed}, at)
            for buffer in range(buffers):
                one = {**base, **changed, "buffer": buffer, "bytes": size // buffers}
                _append(self.ranks[rank], "buffer", one, at)
        everyone = len(listed) == self.size
        for server in range(len(self.servers)):
            given: Mapping[str, Any] | None = (sums or {}).get(server, {})
            if given is None:
                continue
            values = {"called": 0.11, "ready": 0.13 if everyone else None, "summed": None}
            if ended:
                values |= {"summed": 0.14, "done": 0.145, "outcome": "ok"}
            for buffer in range(max(buffers, 1)):
                one = {**base, **values, **given, "buffer": buffer}
                _append(self.servers[server], "sum", one, at)

    def document(self) -> dict[str, Any]:
        """Returns the record as it stands in a file."""
        return {
            "schema": "herring-flight-1",
            "herring": "0.2.0",
            "job": "example",
            "time": START + self.end,
            "why": self.why,
            "size": self.size,
            "processes": [*filter(None, self.ranks), *filter(None, self.servers)],
            "missing": self.missing,
            "silent": self.silent,
            "groups": self.groups,
        }

    def record(self) -> Record:
        """Returns the record as it is read."""
        return parse(self.document())

    def lose(self, rank: int) -> None:
        """Removes a rank's record, as if it had not answered."""
        self.ranks[rank] = {}

    def drop(self, rank: int, before: float) -> None:
        """Drops a rank's entries before a time, as a ring of entries does."""
        kept = self.ranks[rank]["entries"]
        self.ranks[rank]["entries"] = [e for e in kept if e["called"] - START >= before]


def _process(kind: str, index: int, host: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "index": index,
        "host": host,
        "pid": 1000 + index,
        "state": "waiting",
        "where": "",
        "for": 1.0,
        "stack": "",
        "clock_offset": 0.0,
        "clock_error": 0.0,
        "failure": "",
        "entries": [],
    }


_MOMENTS = ("called", "ready", "reduced", "pushed", "summed", "done")


def _append(process: dict[str, Any], kind: str, values: dict[str, Any], at: float) -> None:
    entry = {"id": len(process["entries"]) + 1, "kind": kind, "waited": 0.0, "stream": 0}
    entry |= values
    if "size" in entry:
        entry["bytes"] = entry.pop("size")
    for moment in _MOMENTS:
        after = entry.get(moment)
        entry[moment] = None if after is None else START + at + after
    entry.setdefault("outcome", None)
    process["entries"].append(entry)


def missing_rank() -> Flight:
    """Returns a job in which rank 3 loads data while the others wait in round 7."""
    flight = Flight(size=4, hosts=2, servers=2, end=20.0)
    flight.steps(7)
    flight.round("resnet", 7, 8.0, ranks=(0, 1, 2), ended=False, outcome="timeout", buffers=2)
    flight.why = "'resnet' round 7: rank 3 did not come within 12 s"
    flight.rank(3, state="computing", stack="train.py:40 in load")
    for rank in range(3):
        flight.rank(rank, where="waits in 'resnet' round 7", failure="timeout")
    flight.missing = [{"what": "'resnet' (round 7)", "for": 12.0, "ranks": [3]}]
    return flight


def examples() -> dict[str, Flight]:
    """Returns jobs by what has happened to them, for tests of formats."""
    good = Flight()
    good.steps(5)
    for number in range(3):
        good.call(f"allreduce.{number}", 6.0 + number)
    wrong = Flight()
    wrong.steps(3)
    wrong.call("allreduce.0", 5.0)
    wrong.call("allreduce.1", 6.0, ranks=(0, 1, 2), ended=False)
    wrong.call("broadcast.0", 6.0, ranks=(3,), ended=False)
    sizes = Flight()
    sizes.steps(3)
    sizes.call(
        "allreduce.0", 5.0, ended=False, outcome="mismatch", but={2: {"size": 8192}}
    )  # fmt: skip
    return {"good": good, "missing": missing_rank(), "wrong": wrong, "sizes": sizes}


def with_all_states() -> list[Flight]:
    """Returns jobs of few operations with every combination of what two ranks have reached."""
    flights = []
    moments = ("called", "ready", "reduced", "pushed", "done")
    for first, second in itertools.product(range(len(moments) + 1), repeat=2):
        flight = Flight(size=2, hosts=2, servers=1)
        flight.steps(2)
        flight.call("x", 5.0, ended=False)
        for rank, reached in ((0, first), (1, second)):
            entry = flight.ranks[rank]["entries"][-1]
            for moment in moments[reached:]:
                entry[moment] = None
            if reached == len(moments):
                entry["done"], entry["outcome"] = START + 5.2, "ok"
            if reached == 0:
                flight.ranks[rank]["entries"].pop()
        flights.append(flight)
    return flights


def example_text() -> str:
    """Returns the report that docs/how-to/flight-recorder.md quotes."""
    record = missing_rank().record()
    return report.as_text(record, analyse(record))


__all__ = ["START", "Flight", "example_text", "examples", "missing_rank", "with_all_states"]


if __name__ == "__main__":
    print(example_text())
