"""One training job of a soak, and what its processes use meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from herring.base import proc
from herring.base.units import counted
from herring.command.lines import last_lines
from herring.errors import HerringError
from herring.launch.commands import module_command
from herring.observe.client import Endpoint, ask
from herring.observe.schema import StatusError
from herring_lab.soak.advance import Advance
from herring_lab.soak.faults import Faults
from herring_lab.soak.records import STOP, Steps, last_words, read, steps_file

_TICK = 0.05
_SAMPLE = 0.5  # seconds from one look at memory and descriptors to the next
_CALM_SECONDS = 60.0  # within which all servers must serve at the end
_END_SECONDS = 30.0  # within which all processes end after the last step


class SoakError(HerringError):
    """The job failed, or came to a standstill; the message says how it looked."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is trained, and where.

    Attributes:
        ranks: Number of workers.
        nodes: Number of nodes that they are treated as.
        servers: Number of dedicated servers.
        size: Bytes of the model.
        stall: Seconds without a step after which the job has come to a standstill.
    """

    ranks: int
    nodes: int
    servers: int
    size: int
    stall: float


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a process used at a moment.

    Attributes:
        at: The moment (`time.monotonic`).
        who: ``rank 0``, ``server 1`` or ``launcher``.
        pid: The process.
        memory: Bytes in memory: its own, and what it has touched of shared memory.
        descriptors: Open descriptors.
        threads: Threads.
        faults: Faults until then.
        calm: Whether all servers served.
    """

    at: float
    who: str
    pid: int
    memory: int
    descriptors: int
    threads: int
    faults: int
    calm: bool


class Job:
    """A job, from its start to its end."""

    def __init__(self, layout: Layout, folder: Path, steps: int, faults: Faults | None) -> None:
        """Starts the job.

        Args:
            layout: What is trained, and where.
            folder: An empty folder with a short path, in which the job's files lie.
            steps: Number of steps; 0 means until `stop`.
            faults: What happens to its servers; None for nothing.
        """
        self.samples: list[Sample] = []
        self.began = time.monotonic()
        self._layout = layout
        self._steps = steps
        self._folder = folder
        self._faults = faults
        self._servers: list[Mapping[str, Any]] = []
        self._seen: dict[str, str] = {}  # all processes, by their `proc.identity`
        self._sample_at = 0.0
        self._written = 0
        self._moved = self.began
        self._advance = Advance("herring soak" if faults is not None else "herring soak, the twin")
        own = {"HERRING_FAILOVER": "true", "XDG_RUNTIME_DIR": str(folder)}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(steps),
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def command(self, steps: int) -> list[str]:
        """Returns the words that start the job."""
        layout = self._layout
        words = [*module_command("herring_lab.soak.launcher"), "-n", str(layout.ranks)]
        words += ["--nodes", str(layout.nodes), "--servers", str(layout.servers)]
        words += ["--grace", "2", "--", *module_command("herring_lab.soak.training")]
        return [*words, str(self._folder), str(layout.size), str(steps)]

    def files(self) -> list[Path]:
        """Returns the files that grow with each step."""
        return [steps_file(self._folder, rank) for rank in range(self._layout.ranks)]

    @property
    def log(self) -> Path:
        """The file with everything that the job printed."""
        return self._folder / "job.log"

    def run(self, seconds: float) -> list[Steps]:
        """Watches the job to its end, and returns the steps of all ranks.

        Args:
            seconds: Time until the job is asked to end, counted from its first step; 0 means that
                it ends by itself.

        Raises:
            SoakError: The job failed, or came to a standstill.
            ValueError: A rank left out a step.
        """
        asked = 0.0
        try:
            while self._process.poll() is None:
                now = time.monotonic()
                self._look(now)
                if self._first:
                    self._show(now - self._first, seconds)
                late = bool(seconds and self._first and now >= self._first + seconds)
                if self._faults is not None:
                    was = self._faults.calm
                    self._faults.look(now, self._servers)
                    if self._faults.calm and not was:
                        self._sample_at = now  # before the next fault
                    if not late and self._written:
                        self._faults.act(time.monotonic(), self._servers)
                    if late and not asked and now > self._first + seconds + _CALM_SECONDS:
                        raise SoakError(self._story("servers do not serve again"))
                if late and not asked and (self._faults is None or self._faults.calm):
                    (self._folder / STOP).touch()
                    asked = now
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_TICK)
            if self._process.returncode:
                raise SoakError(self._story(f"the job ended with {self._process.returncode}"))
            return self.steps()
        finally:
            self._advance.clear()
            self._end()

    def _show(self, passed: float, seconds: float) -> None:
        """Shows how far the job is after some seconds, of all that it is given, or of its steps."""
        if seconds:
            done = self._faults.done if self._faults is not None else []
            over = sum(fault.replaced is not None for fault in done)
            said = f"{counted(len(done), 'fault')}, {over} over"
            self._advance.show(min(1.0, passed / seconds), said)
        elif len(words := last_words(self.files()[0])) > 1:  # a step's: others are of one word
            step = int(words[0]) + 1
            self._advance.show(step / self._steps, f"step {step} of {self._steps}")

    def steps(self) -> list[Steps]:
        """Returns what each rank has done until now."""
        return [read(self._folder, rank) for rank in range(self._layout.ranks)]

    def left(self) -> list[str]:
        """Returns the processes that have not ended with the job."""
        return [
            f"{who} (process {process.partition('-')[0]})"
            for process, who in self._seen.items()
            if proc.is_there(process)
        ]

    _first = 0.0  # when the first step was seen

    def _look(self, now: float) -> None:
        """Reads the job's status and its progress, and now and then its memory."""
        written = sum(file.stat().st_size for file in self.files() if file.is_file())
        if written != self._written:
            self._written, self._moved = written, now
            self._first = self._first or now
        elif now - self._moved > self._layout.stall:
            raise SoakError(self._story(f"no step ended in {now - self._moved:.0f} s"))
        self._servers = self.ask()
        if now >= self._sample_at:
            self._sample_at = now + _SAMPLE
            self._measure(now)

    def ask(self) -> list[Mapping[str, Any]]:
        """Returns what may die, as the job's status tells of its servers."""
        for path in (self._folder / "herring").glob("*.sock"):
            with contextlib.suppress(StatusError, ValueError):
                servers = json.loads(ask(Endpoint(path.name, path), "json", 5))["servers"]
                return [one for one in servers if one["kind"] == "dedicated"] or servers
        return []

    def processes(self) -> dict[int, str]:
        """Returns the names of the processes to be measured."""
        found = {one["pid"]: f"server {one['server']}" for one in self._servers}
        for rank, file in enumerate(self.files()):
            with contextlib.suppress(OSError, ValueError), file.open(encoding="ascii") as lines:
                found[int(lines.readline())] = f"rank {rank}"
        return found

    def _measure(self, now: float) -> None:
        processes = {self._process.pid: "launcher", **self.processes()}
        self._seen.update({proc.identity(pid): who for pid, who in processes.items()})
        faults = self._faults
        done, calm = (len(faults.done), faults.calm) if faults is not None else (0, True)
        for pid, who in processes.items():
            with contextlib.suppress(OSError, KeyError, ValueError):
                used = _usage(pid)
                self.samples.append(Sample(now, who, pid, *used, done, calm))

    def _story(self, what: str) -> str:
        """Returns an error with what the job last said, after saving its status."""
        for path in (self._folder / "herring").glob("*.sock"):
            for command in ("status", "json"):
                with contextlib.suppress(StatusError):
                    answer = ask(Endpoint(path.name, path), command, 10)
                    (self._folder / f"status.{command}").write_text(answer)
        said = last_lines(self.log.read_text(encoding="utf-8", errors="replace"))
        return f"{what}; the job last said:\n{said}"

    def _end(self) -> None:
        if self._faults is not None:
            self._faults.end()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _usage(pid: int) -> tuple[int, int, int]:
    """Returns memory, descriptors and threads of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    rows = dict(line.partition(":")[::2] for line in text.splitlines())
    memory = sum(int(rows[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    return memory, len(os.listdir(f"/proc/{pid}/fd")), int(rows["Threads"])
