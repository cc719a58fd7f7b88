"""`herring soak --workers`: an elastic job whose workers die, and what is concluded from it."""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from herring.base import proc
from herring.base.units import counted
from herring.launch.commands import module_command
from herring_lab.soak.elastic_training import total_of
from herring_lab.soak.faults import Fault, Faults
from herring_lab.soak.job import Job, Layout, Sample
from herring_lab.soak.judge import Growth, growth, percentile
from herring_lab.soak.records import DONE, last_words

_WORDS = 5  # of the line of a step


@dataclasses.dataclass(frozen=True)
class Step:
    """A step as one process saw it.

    Attributes:
        number: Its number.
        end: When it ended (`time.monotonic`).
        generation: The generation of the job.
        slots: The workers that took part.
        total: The total of all results since the first step.
        process: Who saw it, by its `proc.identity`. Process IDs alone come again in long soaks.
    """

    number: int
    end: float
    generation: int
    slots: tuple[int, ...]
    total: int
    process: str


def _step(line: str, process: str) -> Step:
    number, end, generation, slots, total = line.split()
    taking_part = tuple(map(int, slots.split(",")))
    return Step(int(number), float(end), int(generation), taking_part, int(total), process)


@dataclasses.dataclass(frozen=True)
class _Worker:
    """A process that is or was a worker, by its file."""

    slot: int
    pid: int
    process: str
    path: Path

    @classmethod
    def of(cls, path: Path) -> _Worker:
        _, slot, pid, start = path.name.split("-")
        return cls(int(slot), int(pid), f"{pid}-{start}", path)

    def last_step(self) -> list[str]:
        """Returns the words of its last line, if that is one of a step."""
        words = last_words(self.path)
        return words if len(words) == _WORDS else []


def read_workers(folder: Path) -> tuple[list[Step], int]:
    """Returns all steps of all processes, and how many processes came to the end."""
    found, ended = [], 0
    for path in sorted(folder.glob("worker-*")):
        process = _Worker.of(path).process
        for line in path.read_text(encoding="ascii").rpartition("\n")[0].splitlines():
            if line == DONE:
                ended += 1
            else:
                found.append(_step(line, process))
    return found, ended


class ElasticJob(Job):
    """An elastic job, whose workers count as what may die."""

    def __init__(self, layout: Layout, folder: Path, steps: int, faults: Faults | None) -> None:
        """Starts the job, as `Job` does."""
        self._ended: set[str] = set()  # the names of files whose processes have ended
        super().__init__(layout, folder, steps, faults)

    def command(self, _steps: int) -> list[str]:
        """Returns the words that start the job."""
        layout = self._layout
        words = [*module_command("herring_lab.soak.launcher"), "-n", str(layout.ranks)]
        words += ["--nodes", str(layout.nodes), "--servers", str(layout.servers)]
        words += ["--elastic", "--grace", "2", "--"]
        words += module_command("herring_lab.soak.elastic_training")
        return [*words, str(self._folder), str(layout.size)]

    def files(self) -> list[Path]:
        """Returns the files that grow with each step: those of workers that live."""
        return [worker.path for worker in self._workers()]

    def ask(self) -> list[Mapping[str, Any]]:
        """Returns the workers: those of the latest generation serve."""
        last = {}
        for worker in self._workers():
            words = worker.last_step()
            last[worker] = int(words[2]) if words else 0
        latest = max(last.values(), default=0)
        places = dict.fromkeys(range(self._layout.ranks), 0)
        places.update({w.slot: w.pid for w, seen in last.items() if seen == latest > 0})
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
        for worker in self._workers():
            words = worker.last_step()
            slots = words[3].split(",") if words else [str(worker.slot)]
            place = f"rank {slots.index(str(worker.slot))} of {len(slots)}"
            found[worker.pid] = f"worker {worker.slot} as {place}"
        return found

    def _workers(self) -> list[_Worker]:
        """Returns the workers that live."""
        paths = sorted(self._folder.glob("worker-*"))
        workers = [_Worker.of(path) for path in paths if path.name not in self._ended]
        self._ended.update(
            worker.path.name for worker in workers if not proc.is_there(worker.process)
        )
        return [worker for worker in workers if worker.path.name not in self._ended]


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
        ends: dict[tuple[int, int], float] = {}  # by generation and number: the last end
        latest: dict[str, int] = {}  # the generation of the last step of a process
        for step in self.steps:
            key = step.generation, step.number
            ends[key] = max(ends.get(key, step.end), step.end)
            latest[step.process] = max(latest.get(step.process, 0), step.generation)
        order = sorted(ends)
        found = []
        for fault, victim in zip(self.faults, self._victims(), strict=True):
            begin = bisect.bisect(order, (latest.get(victim, 0) + 1, -1))
            later = (ends[order[index]] for index in range(begin, len(order)))
            if end := next((end for end in later if end > fault.at), None):
                found.append(end - fault.at)
        return found

    def wrong(self) -> str:
        """Says which step was lost, counted twice or computed wrongly; "" if none."""
        by_number: dict[int, list[Step]] = defaultdict(list)
        for step in self.steps:
            by_number[step.number].append(step)
        killed = set(self._victims())
        total = 0
        for number in range(len(by_number)):
            if number not in by_number:
                return f"step {number} was lost"
            # A worker may have ended a step and died before any other had its result. The others
            # then made the step again.
            valid = max(step.generation for step in by_number[number])
            for step in by_number[number]:
                if step.generation < valid and step.process not in killed:
                    pid = step.process.partition("-")[0]
                    return f"step {number} was made twice, although process {pid} had it"
            made = [step for step in by_number[number] if step.generation == valid]
            total += total_of(number, list(made[0].slots), self.elements)
            if any(step.total != total for step in made):
                seen = sorted({step.total for step in made})
                return f"the total after step {number} is {seen}, and not {total}"
        return ""

    def _victims(self) -> list[str]:
        """Returns for each fault the process that had its ID then; "" if it had ended no step."""
        begins: dict[int, dict[str, float]] = defaultdict(dict)  # by ID: the first ends of steps
        for step in self.steps:
            lives = begins[int(step.process.partition("-")[0])]
            lives[step.process] = min(lives.get(step.process, step.end), step.end)
        found = []
        for fault in self.faults:
            begun = [(end, who) for who, end in begins[fault.pid].items() if end <= fault.at]
            found.append(max(begun, default=(0.0, ""))[1])
        return found

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
