"""`herring soak --workers`: an elastic job whose workers die, and what is concluded from it."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from herring.launch.commands import module_command
from herring.launch.soak.elastic_training import total_of
from herring.launch.soak.faults import Fault
from herring.launch.soak.job import Job, Sample
from herring.launch.soak.judge import Growth, growth, percentile
from herring.launch.soak.records import DONE
from herring.units import counted

__all__ = ["ElasticJob", "Step", "WorkersOutcome", "read_workers"]

_TAIL = 400  # bytes, in which the last line of a worker is


@dataclasses.dataclass(frozen=True)
class Step:
    """A step as one process saw it.

    Attributes:
        number: Its number.
        end: When it ended (`time.monotonic`).
        generation: The generation of the job.
        slots: The workers that took part.
        total: The total of all results since the first step.
        pid: The process.
    """

    number: int
    end: float
    generation: int
    slots: tuple[int, ...]
    total: int
    pid: int


def _step(line: str, pid: int) -> Step:
    number, end, generation, slots, total = line.split()
    taking_part = tuple(map(int, slots.split(",")))
    return Step(int(number), float(end), int(generation), taking_part, int(total), pid)


def read_workers(folder: Path) -> tuple[list[Step], int]:
    """Returns all steps of all processes, and how many processes came to the end."""
    found, ended = [], 0
    for path in sorted(folder.glob("worker-*")):
        pid = int(path.name.split("-")[2])
        for line in path.read_text(encoding="ascii").rpartition("\n")[0].splitlines():
            if line == DONE:
                ended += 1
            else:
                found.append(_step(line, pid))
    return found, ended


class ElasticJob(Job):
    """An elastic job, whose workers count as what may die."""

    def command(self, _steps: int) -> list[str]:
        """Returns the words that start the job."""
        layout = self._layout
        words = [*module_command("herring.launch.soak.launcher"), "-n", str(layout.ranks)]
        words += ["--nodes", str(layout.nodes), "--servers", str(layout.servers)]
        words += ["--elastic", "--grace", "2", "--"]
        words += module_command("herring.launch.soak.elastic_training")
        return [*words, str(self._folder), str(layout.size)]

    def files(self) -> list[Path]:
        """Returns the files that grow with each step."""
        return sorted(self._folder.glob("worker-*"))

    def ask(self) -> list[Mapping[str, Any]]:
        """Returns the workers: those of the latest generation serve."""
        last: dict[tuple[int, int], int] = {}
        for path in self.files():
            _, slot, pid = path.name.split("-")
            if _is_there(int(pid)):
                words = _last_words(path)
                last[int(slot), int(pid)] = int(words[2]) if words else 0
        latest = max(last.values(), default=0)
        places = dict.fromkeys(range(self._layout.ranks), 0)
        places.update({slot: pid for (slot, pid), seen in last.items() if seen == latest > 0})
        return [
            {
                "server": slot,
                "state": "serving" if pid else "gone",
                "pid": pid,
                "kind": "dedicated",
            }
            for slot, pid in places.items()
        ]

    def processes(self) -> dict[int, str]:
        """Returns the names of the processes to be measured, with their places in the job.

        What a process uses depends on its place: rank 0 has the rendezvous, and others a server.
        """
        found = {}
        for path in self.files():
            _, slot, pid = path.name.split("-")
            if _is_there(int(pid)):
                words = _last_words(path)
                slots = words[3].split(",") if words else [slot]
                place = f"rank {slots.index(slot)} of {len(slots)}"
                found[int(pid)] = f"worker {slot} as {place}"
        return found


def _last_words(path: Path) -> list[str]:
    """Returns the words of a worker's last line, if that is one of a step."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    words = lines[-1].decode().split() if lines else []
    return words if len(words) == 5 else []


def _is_there(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


@dataclasses.dataclass
class WorkersOutcome:
    """An elastic job whose workers died.

    Attributes:
        seed: Of the faults.
        faults: What was done to its workers.
        steps: All steps of all processes.
        ended: How many processes came to the end.
        ranks: The number of workers.
        elements: The number of elements of a result.
        samples: What the processes used.
        memory: Bytes that a process may use more at the end.
        left: Files and processes that were left after the job.
        failure: Why it ended early; "" if it did not.
    """

    seed: int
    faults: list[Fault]
    ranks: int
    elements: int
    memory: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    ended: int = 0
    samples: list[Sample] = dataclasses.field(default_factory=list)
    left: list[str] = dataclasses.field(default_factory=list)
    failure: str = ""

    def recoveries(self) -> list[float]:
        """Returns for each fault the time until the survivors ended a step without the victim."""
        found = []
        for fault in self.faults:
            before = max((s.generation for s in self.steps if s.pid == fault.pid), default=0)
            after = [s for s in self.steps if s.generation > before and s.end > fault.at]
            if after:
                first = min((s.generation, s.number) for s in after)
                ends = [s.end for s in after if (s.generation, s.number) == first]
                found.append(max(ends) - fault.at)
        return found

    def wrong(self) -> str:
        """Says which step was lost, counted twice or computed wrongly; "" if none."""
        by_number: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            by_number[step.number].append(step)
        killed = {fault.pid for fault in self.faults}
        total = 0
        for number in range(len(by_number)):
            if number not in by_number:
                return f"step {number} was lost"
            # A worker may have ended a step and died before any other had its result. The others
            # then made the step again.
            valid = max(step.generation for step in by_number[number])
            for step in by_number[number]:
                if step.generation < valid and step.pid not in killed:
                    return f"step {number} was made twice, although process {step.pid} had it"
            made = [step for step in by_number[number] if step.generation == valid]
            total += total_of(number, list(made[0].slots), self.elements)
            if any(step.total != total for step in made):
                seen = sorted({step.total for step in made})
                return f"the total after step {number} is {seen}, and not {total}"
        return ""

    def growth(self) -> list[Growth]:
        """Returns the growth of processes in jobs of all workers; others have other servers."""
        return growth(s for s in self.samples if s.who.endswith((f"of {self.ranks}", "launcher")))

    def problems(self) -> list[str]:
        """Says what is wrong; empty if nothing is."""
        if self.failure:
            return [self.failure]
        found = []
        if not self.faults:
            found.append("there was no fault: more --minutes, or a smaller --kill-every")
        if missing := sum(fault.replaced is None for fault in self.faults):
            found.append(f"{counted(missing, 'worker')} did not come back")
        if wrong := self.wrong():
            found.append(wrong)
        if self.ended != self.ranks:
            found.append(f"{self.ended} of {self.ranks} workers came to the end")
        found += [f"grew: {one}" for one in self.growth() if one.exceeds(self.memory)]
        return found + [f"left behind: {one}" for one in self.left]

    def figures(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        waits = [f.replaced - f.at for f in self.faults if f.replaced is not None]
        times = self.recoveries()
        return {
            "seed": self.seed,
            "steps": len({step.number for step in self.steps}),
            "generations": max((step.generation for step in self.steps), default=0),
            "faults": len(self.faults),
            "kinds": {k: sum(f.what == k for f in self.faults) for k in ("kill", "stop")},
            "recovery_seconds": {
                n: percentile(times, s) if times else None for n, s in shares.items()
            },
            "replaced_seconds": {
                n: percentile(waits, s) if waits else None for n, s in shares.items()
            },
            "growth": [dataclasses.asdict(one) for one in self.growth()],
            "left": self.left,
            "problems": self.problems(),
        }

    def lines(self) -> list[str]:
        """Returns the report."""
        figures = self.figures()
        kinds = figures["kinds"]
        said = [
            f"seed        {self.seed}",
            f"steps       {figures['steps']}, in {counted(figures['generations'], 'generation')}",
            f"faults      {figures['faults']} ({kinds['kill']} killed, {kinds['stop']} stopped)",
        ]
        said += [
            f"{name:12}" + ", ".join(f"{share} {times[share]:.2f} s" for share in times)
            for name, times in (
                ("recovery", figures["recovery_seconds"]),
                ("came back", figures["replaced_seconds"]),
            )
            if times["max"] is not None
        ]
        if not figures["problems"]:
            said.append("steps       none lost and none twice, all totals right")
        return said + [f"FAILED      {problem}" for problem in figures["problems"]]
