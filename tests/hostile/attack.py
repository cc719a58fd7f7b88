"""Trains while thousands of strangers connect, and reports what that did to the job.

Usage: python tests/hostile/attack.py [--connections N] [--turns N] [--seed N]

Strangers come to the rendezvous before the job has formed, and in turns to all ports on which its
processes listen: rendezvous, servers, other workers, status. Quiet turns and turns with an attack
alternate, so the ratio of their steps per second does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from strangers import KINDS, PATIENCE, Crowd, Known, Target, record_member

from herring import _core
from herring.observe.client import Endpoint, ask
from herring.observe.schema import StatusError

TRAINING = Path(__file__).parent / "training.py"
LEAST_KEPT = 0.95  # of the steps per second
MOST_PLACES = 256  # of a port, for strangers
MOST_GROWTH = 32  # MB of a process, during the attacks
# Of each five attacks two go to a single port, where more strangers stay than have a place. The
# first goes to all ports, so that a report with a few turns has every place.
ONE_PORT = (False, True, False, True, False)


@dataclasses.dataclass
class Usage:
    """What a process of the job used: megabytes and descriptors, over time."""

    name: str
    megabytes: list[float] = dataclasses.field(default_factory=list)
    descriptors: list[int] = dataclasses.field(default_factory=list)
    quiet: tuple[float, int] = (0.0, 0)  # the most before the attacks
    listens: int = 0  # number of ports


@dataclasses.dataclass
class Report:
    """What the attacks did.

    Attributes:
      connections: The number made.
      by_kind: The same by kind and place.
      steps: Training steps; 0 if one failed.
      formed: Seconds until the job had formed, with strangers at the rendezvous.
      ratios: Steps per second during an attack, divided by those of the quiet turn beside it.
      asked, answered: How often the status was asked during attacks, and answered.
      leaks: What strangers heard and should not have.
      usage: What the processes used.
      output: Of the job.
    """

    connections: int = 0
    by_kind: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    steps: int = 0
    formed: float = 0.0
    rate: float = 0.0
    ratios: list[float] = dataclasses.field(default_factory=list)
    asked: int = 0
    answered: int = 0
    leaks: list[str] = dataclasses.field(default_factory=list)
    usage: list[Usage] = dataclasses.field(default_factory=list)
    output: str = ""

    @property
    def kept(self) -> float:
        """The part of the steps per second that was kept."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    def problems(self) -> list[str]:
        """Returns what must not be, except for speed, which other programs disturb too."""
        found = []
        if self.steps == 0:
            found.append(f"a step failed: {self.output[-3000:]}")
        if self.leaks:
            found.append(f"strangers heard too much: {self.leaks[:3]}")
        if self.answered < self.asked:
            found.append(f"the status answered {self.answered} of {self.asked} questions")
        for one in self.usage:
            memory, descriptors = one.quiet
            if max(one.megabytes) > memory + MOST_GROWTH:
                found.append(f"{one.name} grew from {memory:.0f} to {max(one.megabytes):.0f} MB")
            if max(one.descriptors) > descriptors + one.listens * MOST_PLACES + 32:
                found.append(
                    f"{one.name} had {descriptors} and then {max(one.descriptors)} descriptors"
                )
            if one.descriptors[-1] > descriptors + 32:
                found.append(f"{one.name} has kept {one.descriptors[-1]} descriptors")
        return found


class Job:
    """A job of four workers on two nodes with a dedicated server, on the loopback interface."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rendezvous, self.status = 0, _free_port()
        self._log = open(folder / "output", "w+")  # noqa: SIM115
        keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
        self._launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "herring.command.cli", "run", "-n", "4", "--nodes", "2"),
                *("--servers", "1", "--"),
                *(sys.executable, str(TRAINING), str(folder)),
            ],
            env={
                **keep,
                "OMP_NUM_THREADS": "1",
                "HERRING_STATUS": f"127.0.0.1:{self.status}",
                "HERRING_LOG_LEVEL": "error",
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def alive(self) -> bool:
        return self._launcher.poll() is None

    def steps(self) -> int:
        with contextlib.suppress(OSError):
            return (self.folder / "steps").stat().st_size // 8
        return 0

    def steps_between(self, start: int, end: int) -> int:
        data = (self.folder / "steps").read_bytes()
        times = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) - 7, 8)]
        return sum(start <= one < end for one in times)

    def processes(self) -> dict[int, str]:
        """Returns the processes of the job, and what they are."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    stat = (entry / "stat").read_text()
                    parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
        found = {}
        for pid in parents:
            above = pid
            while above in parents and above != self._launcher.pid:
                above = parents[above]
            if above != self._launcher.pid or pid == self._launcher.pid:
                continue
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                variables = dict(
                    one.split(b"=", 1)
                    for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    if b"=" in one
                )
                if b"HERRING_SECRET" not in variables:
                    continue  # it has not begun yet
                if str(TRAINING).encode() in words:
                    found[pid] = f"rank {variables[b'HERRING_RANK'].decode()}"
                elif b"server" in words:
                    found[pid] = "server"
        return found

    def variable(self, name: str) -> str:
        """Returns an environment variable of the job's processes, or an empty text."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if one.startswith(name.encode() + b"="):
                        return one.split(b"=", 1)[1].decode()
        return ""

    def targets(self) -> tuple[list[Target], Counter[int]]:
        """Returns the ports on which the job's processes listen, and how many each process has."""
        listening = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening[f"socket:[{fields[9]}]"] = int(fields[1].split(":")[1], 16)
        places: dict[int, str] = {}
        listens: Counter[int] = Counter()
        for pid, name in self.processes().items():
            with contextlib.suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        port = listening.get(os.readlink(f"/proc/{pid}/fd/{number}"))
                        if port is not None:
                            listens[pid] += 1
                            places.setdefault(port, name)
        places[self.rendezvous], places[self.status] = "rendezvous", "status"
        return (
            [Target(place, port, port == self.status) for port, place in sorted(places.items())],
            listens,
        )

    def end(self) -> tuple[int, str]:
        """Lets the training end; returns its number of steps (0: it failed) and its output."""
        (self.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(60)
        self.kill()
        self._log.seek(0)
        output = self._log.read()
        self._log.close()
        done = self.folder / "done"
        good = self._launcher.returncode == 0 and done.exists()
        return (int(done.read_text()) if good else 0), output

    def kill(self) -> None:
        if self.alive():
            os.killpg(self._launcher.pid, signal.SIGTERM)
            try:
                self._launcher.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._launcher.pid, signal.SIGKILL)
                self._launcher.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait(
    job: Job,
    what: str,
    seconds: float,
    ready: Callable[[], object],
    meanwhile: Callable[[], object] | None = None,
) -> float:
    """Waits until something is ready; returns how many seconds that took."""
    start = time.monotonic()
    while not ready():
        if not job.alive() or time.monotonic() - start > seconds:
            _, output = job.end()
            raise RuntimeError(f"{what} did not come in {seconds:g} s: {output[-3000:]}")
        meanwhile() if meanwhile else time.sleep(0.02)
    return time.monotonic() - start


def _look(usage: dict[int, Usage]) -> None:
    """Adds what the processes use now."""
    for pid, one in usage.items():
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            resident = next(line for line in lines if line.startswith("RssAnon:"))
            one.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
            one.megabytes.append(int(resident.split()[1]) / 1024)


def attack(
    connections: int, turns: int = 20, seed: int = 1, rate: float = 400, early: int = 300
) -> Report:
    """Runs a job under attack.

    Args:
      connections: How many connections the strangers make, apart from the early ones.
      turns: The number of quiet turns, and of turns with an attack.
      seed: Determines who attacks what, and how.
      rate: Connections per second during an attack.
      early: The number of connections to the rendezvous before the job has formed.

    Raises:
      RuntimeError: The job did not form.
    """
    report, rng = Report(), random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="herring-hostile-"))
    job = Job(folder)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    os.nice(5)  # the strangers' own work is not what is measured
    try:
        _wait(job, "a process of the job", 60, lambda: job.variable("HERRING_SECRET"))
        job.rendezvous = int(job.variable("HERRING_RENDEZVOUS").rsplit(":", 1)[1])
        name, secret = job.variable("HERRING_JOB") or "herring", job.variable("HERRING_SECRET")
        known = Known(name, _core.PROTOCOL_VERSION, b"\0" * 104)
        crowd = Crowd([Target("rendezvous", job.rendezvous)], known, rng)
        report.formed = _wait(
            job,
            "the first step",
            120,
            lambda: job.steps() > 0,
            lambda: crowd.attack(early // 10 if sum(crowd.came.values()) < early else 0, 0.1),
        )
        crowd.leave()
        known = dataclasses.replace(
            known,
            recorded=record_member(
                ("127.0.0.1", job.rendezvous), name, bytes.fromhex(secret), known.version
            ),
        )
        each = connections // turns
        seconds = max(each / rate, 0.5)
        report.rate = each / seconds
        _measure(job, report, crowd, known, turns, each, seconds)
        report.steps, report.output = job.end()
    finally:
        job.kill()
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(PermissionError):  # other tests follow in this process
            os.setpriority(os.PRIO_PROCESS, 0, priority)
    return report


def _measure(
    job: Job, report: Report, first: Crowd, known: Known, turns: int, each: int, seconds: float
) -> None:
    rng = first.rng
    _wait(job, "the twentieth step", 60, lambda: job.steps() > 20)
    targets, listens = job.targets()
    crowd = Crowd(targets, known, rng)
    usage = {pid: Usage(name, listens=listens[pid]) for pid, name in job.processes().items()}
    _look(usage)
    for one in usage.values():
        one.quiet = one.megabytes[-1], one.descriptors[-1]
    spans: list[list[tuple[int, int]]] = []
    for turn in range(turns):
        pair: list[tuple[int, int]] = [(0, 0), (0, 0)]
        for attacked in (turn % 2, 1 - turn % 2):
            crowd.leave()
            time.sleep(0.1)  # what the last turn has left is over
            start = time.monotonic_ns()
            if attacked:
                burst = rng.choice([1, 1, 50, each])
                one_port = ONE_PORT[turn % len(ONE_PORT)]
                crowd.targets = [rng.choice(targets)] if one_port else targets
                crowd.stays = (15.0,) if one_port else PATIENCE
                crowd.attack(each // 2, seconds / 2, burst)
                _look(usage)
                crowd.attack(each - each // 2, seconds / 2, burst)
            else:
                time.sleep(seconds)
            pair[attacked] = start, time.monotonic_ns()
            _look(usage)
            if attacked:
                report.asked += 1
                with contextlib.suppress(StatusError):
                    ask(Endpoint("job", host="127.0.0.1", port=job.status), "json", 10)
                    report.answered += 1
        spans.append(pair)
        if not job.alive():
            return
    crowd.leave()
    before = job.steps()
    _wait(job, "more steps", 60, lambda: job.steps() > before + 5)
    _wait_until_gone(usage)
    for quiet, during in spans:
        calm = job.steps_between(*quiet) / (quiet[1] - quiet[0])
        stormy = job.steps_between(*during) / (during[1] - during[0])
        report.ratios.append(stormy / calm if calm else 0.0)
    report.by_kind = first.came + crowd.came
    report.connections = sum(report.by_kind.values())
    report.leaks = first.leaks + crowd.leaks
    report.usage = list(usage.values())


def _wait_until_gone(usage: dict[int, Usage]) -> None:
    """Waits until the processes have closed what strangers have left, at most 15 s."""
    end = time.monotonic() + 15
    while time.monotonic() < end:
        _look(usage)
        if all(one.descriptors[-1] <= one.quiet[1] + 4 for one in usage.values()):
            return
        time.sleep(0.2)


def show(report: Report) -> str:
    """Returns the report as text."""
    lines = [
        f"connections: {report.connections} of {len(KINDS)} kinds, {report.rate:.0f} a second",
        f"the job formed within {report.formed:.1f} s, with strangers at its rendezvous",
        f"steps: {report.steps}, none failed" if report.steps else "A STEP FAILED",
        f"steps per second with an attack, of those without: median {report.kept:.3f}; "
        + " ".join(f"{ratio:.2f}" for ratio in report.ratios),
        f"status: {report.answered} of {report.asked} questions answered during attacks",
        f"strangers who heard too much: {len(report.leaks)}",
        "",
        "| process | MB before | most | at the end | descriptors before | most | at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(report.usage, key=lambda one: one.name):
        memory, descriptors = one.quiet
        lines.append(
            f"| {one.name} | {memory:.1f} | {max(one.megabytes):.1f} | {one.megabytes[-1]:.1f} "
            f"| {descriptors} | {max(one.descriptors)} | {one.descriptors[-1]} |"
        )
    lines += ["", "| place | connections |", "|---|---|"]
    places: Counter[str] = Counter()
    for (_, place), count in report.by_kind.items():
        places[place] += count
    lines += [f"| {place} | {count} |" for place, count in sorted(places.items())]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=400, help="connections per second")
    options = parser.parse_args()
    report = attack(options.connections, options.turns, options.seed, options.rate)
    print(show(report))
    problems = report.problems()
    if report.kept < LEAST_KEPT:
        problems.append(f"only {report.kept:.3f} of the steps per second were kept")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
