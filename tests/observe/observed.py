"""Runs a job with a fault, asks for its status, reads its log, and judges whom Herring accuses."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from herring_lab.emulate import Cluster
from herring_lab.emulate.runner import Plan, run

__all__ = ["Case", "Result", "Run", "observe"]

TRAINING = Path(__file__).with_name("training.py")
WARN_AFTER = 2.0
DISK = 20_000_000  # bytes per second of the slow disk
GRACE = 1.0  # seconds within which Herring must say what can be known
_AFTER = 2.0  # seconds for which nobody else may be accused, after what is expected was said
_START = 60.0
_MUTE = ("stopped", "unreachable", "silent", "lost")
_LINE = re.compile(
    r"(rank|server) (\d+)(?: \([^)]*\))? (?:is late|was late|is slow|is stopped|is unreachable|"
    r"is the last|does not report)"
)
_WARNING = re.compile(r"has waited [\d.]+ m?s for ([^;]*)")
_RANK = re.compile(r"\brank (\d+)")


@dataclasses.dataclass(frozen=True)
class Case:
    """A job with a fault, and what Herring should say about it.

    Attributes:
      name: what happens, in a few words.
      expect: "rank 2" or "server 0", and the causes of which one must be named.
      known: seconds after the beginning of the fault after which it can be known.
      layout: "node", "nodes", "three nodes", "dedicated" (servers), "hosts", "hosts and servers",
        or "hosts of two".
      size: the number of ranks.
      kind: how steps reduce: "planned", "calls", "ddp", "groups" or "partial".
      faults: of the program, see training.py.
      outside: what the harness does to the job two seconds after its start.
      says: patterns that must be found in the log or the findings, each within the same time.
      chronic: whether the rank is late again and again; None: does not matter.
      lasts: seconds for which a healthy job is observed.
      clears: seconds after the end of the fault from which on nobody may be called late again and
        again; None: the fault does not end.
      warns: patterns that a warning about a long wait must have.
      also: who may be accused beside those who are expected.
      program: more settings of the program, see training.py.
      settings: more environment variables.
      rate: of the links of emulated hosts, in bits per second.
      held_out: whether the case was written before Herring's judgement was tried on it, after the
        rules of that judgement had been made with the other cases.
    """

    name: str
    expect: dict[str, set[str]]
    known: float = 1.0
    layout: str = "nodes"
    size: int = 4
    kind: str = "planned"
    faults: tuple[dict[str, Any], ...] = ()
    outside: Callable[[Run], None] | None = None
    says: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    chronic: bool | None = None
    lasts: float = 8.0
    clears: float | None = None
    also: tuple[str, ...] = ()
    program: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    rate: float | None = 200e6
    held_out: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        """All that must be said; nothing if the job is healthy."""
        return (*self.expect, *self.says, *self.warns)


@dataclasses.dataclass
class Result:
    """What Herring has said."""

    case: Case
    verdict: str  # "right", "slow", "missed", "wrong"
    said: str
    after: float | None  # seconds after it could be known; negative: before
    output: str
    findings: list[str]


class Run:
    """A running case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.lines: list[tuple[float, str]] = []
        self.status: dict[str, Any] = {}
        self.began = 0.0
        self.cluster: Cluster | None = None
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self._children: list[subprocess.Popen[bytes]] = []

    def rank(self, number: int) -> int:
        """Returns the process of a rank."""
        return int(self.status["ranks"][number]["pid"])

    def server(self, number: int) -> int:
        """Returns the process of a server."""
        return int(self.status["servers"][number]["pid"])

    def burn(self, processor: int, count: int) -> None:
        """Keeps a processor busy until the case ends."""
        loop = ["taskset", "-c", str(processor), sys.executable, "-c", "while True: pass"]
        for _ in range(count):
            self._children.append(subprocess.Popen(loop))

    def start(self) -> None:
        case = self.case
        program = {
            "folder": str(self.folder),
            "kind": case.kind,
            "steps": 100_000,
            "compute": 0.06,
            "bytes": 100_000,
            "disk": DISK,
            "faults": case.faults,
            **case.program,
        }
        for fault in case.faults:
            for rank in fault["ranks"]:
                if fault["what"] in ("input", "loader"):
                    os.mkfifo(self.folder / f"input-{rank}")
                    threading.Thread(target=self._feed, args=(fault, rank), daemon=True).start()
                if fault["what"] in ("checkpoint", "save"):
                    os.mkfifo(self.folder / f"disk-{rank}")
                    threading.Thread(target=self._store, args=(fault, rank), daemon=True).start()
        settings = {
            "OBSERVED_CASE": json.dumps(program),
            "HERRING_WARN_AFTER": f"{WARN_AFTER:g}",
            "HERRING_REPORT_EVERY": "1",
            "HERRING_TIMEOUT": "30",
            "HERRING_FLIGHT_FOLDER": "off",
            "XDG_RUNTIME_DIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **case.settings,
        }
        reading, writing = os.pipe()
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()
        command = [sys.executable, str(TRAINING)]
        if case.layout.startswith("hosts"):
            two = case.layout == "hosts of two"
            servers = 2 if two or "servers" in case.layout else 0
            plan = Plan(
                command, case.size, servers, 1 + two, timeout=120, grace=3, settings=settings
            )
            self.cluster = self._stack.enter_context(Cluster(plan.hosts, case.rate))
            thread = threading.Thread(target=self._run_on_hosts, args=(plan, writing), daemon=True)
            thread.start()
            return
        layout = {
            "node": [],
            "nodes": ["--nodes", "2"],
            "three nodes": ["--nodes", "3"],
            "dedicated": ["--nodes", "2", "--servers", "2"],
        }[case.layout]
        launcher = [sys.executable, "-m", "herring.command.cli", "run", "-n", str(case.size)]
        launcher += [*layout, "--grace", "3"]
        child = subprocess.Popen(
            [*launcher, "--", *command],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        self._children.append(child)

    def _run_on_hosts(self, plan: Plan, writing: int) -> None:
        with contextlib.suppress(Exception):  # the cluster was removed
            run(self.cluster, plan, writing)
        os.close(writing)

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, errors="replace") as lines:
            for line in lines:
                self.lines.append((time.time(), line.rstrip()))

    def _feed(self, fault: dict[str, Any], rank: int) -> None:
        item = pickle.dumps(bytes(100_000))
        slow = 0
        with contextlib.suppress(OSError), open(self.folder / f"input-{rank}", "wb", 0) as pipe:
            fcntl.fcntl(pipe, 1031, 4096)  # F_SETPIPE_SZ: little is read ahead
            while not self._ended.is_set():
                begun = (self.folder / f"began-{rank}").exists()
                pause = fault.get("seconds", 0.05) if begun else 0
                if begun and slow >= fault.get("count", 1 << 30):
                    pause = 0
                slow += begun
                for place in range(0, len(item), 4096):
                    pipe.write(item[place : place + 4096])
                    if pause and self._ended.wait(pause / (len(item) / 4096)):
                        return

    def _store(self, fault: dict[str, Any], rank: int) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                with open(self.folder / f"disk-{rank}", "rb", 0) as pipe:
                    begun, done = time.monotonic(), 0
                    while data := pipe.read(1 << 16):
                        done += len(data)
                        hangs = fault["seconds"] >= 1000
                        pause = 1000 if hangs else begun + done / DISK - time.monotonic()
                        if self._ended.wait(max(pause, 0)):
                            return

    def ask(self) -> dict[str, Any] | None:
        """Returns the status of the job; None if there is none."""
        for path in (self.folder / "herring").glob("*.sock"):
            with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as asked:
                asked.settimeout(2)
                asked.connect(str(path))
                asked.sendall(b"json\n")
                answer = b""
                while data := asked.recv(1 << 16):
                    answer += data
                self.status = json.loads(answer)
                return self.status
        return None

    def ready(self) -> bool:
        """Returns whether all ranks train."""
        return len(list(self.folder.glob("ready-*"))) == self.case.size

    def over(self) -> bool:
        """Returns whether the launcher has ended."""
        return any(child.poll() is not None for child in self._children)

    def since(self) -> float:
        """Returns when the fault began; 0 if it has not."""
        if not self.began:
            for place in self.folder.glob("began-[0-9]"):
                began = float(place.read_text().split()[0])
                self.began = max(self.began, began)
            wanted = {rank for fault in self.case.faults for rank in fault["ranks"]}
            if len(list(self.folder.glob("began-[0-9]"))) < len(wanted):
                self.began = 0.0
        return self.began

    def ended(self) -> float:
        """Returns when the fault ended; 0 if it has not."""
        return max((p.stat().st_mtime for p in self.folder.glob("ended-[0-9]")), default=0.0)

    def stop(self) -> None:
        self._ended.set()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM) if child.pid == os.getpgid(
                    child.pid
                ) else child.kill()
        for kind in ("ranks", "servers"):
            for process in self.status.get(kind, ()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process["pid"], signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)
            if child.poll() is None:
                child.kill()
        # Threads that wait for the other end of a pipe go on.
        for place in self.folder.glob("*-[0-9]"):
            if place.is_fifo():
                with contextlib.suppress(OSError):
                    os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK))
        self._stack.close()


def accusations(status: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yields who stands out, why, and whether again and again."""
    for rank in status["ranks"]:
        if rank["state"] in _MUTE:
            yield f"rank {rank['rank']}", rank["state"], False
        elif rank["outlier"] or rank["chronic"]:
            yield f"rank {rank['rank']}", rank["cause"] or "unknown", rank["chronic"]
    workers = {rank["pid"] for rank in status["ranks"]}
    for server in status["servers"]:
        if server["kind"] == "colocated" and server["pid"] in workers:
            continue  # the rank in the same process is judged
        if server["state"] in _MUTE:
            yield f"server {server['server']}", server["state"], False
        elif server["outlier"]:
            yield f"server {server['server']}", server["cause"] or "unknown", False
    for missing in status["missing"]:
        if missing["for"] >= 1:
            for number in missing["ranks"]:
                yield f"rank {number}", "missing", False
    if status["binds"]["what"] == "rank" and status["binds"]["who"]:
        yield status["binds"]["who"].partition(" (")[0], "binds", False


def observe(case: Case) -> Result:
    """Runs a case."""
    folder = Path(tempfile.mkdtemp(prefix="obs-"))
    folder.chmod(0o700)
    running = Run(case, folder)
    try:
        running.start()
        return _watch(running)
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _watch(running: Run) -> Result:
    case = running.case
    end = time.time() + _START
    while not running.ready() and time.time() < end and not running.over():
        time.sleep(0.05)
    start = time.time()
    if case.outside or not case.wanted:
        end = time.time() + 2
        while time.time() < end:
            running.ask()
            time.sleep(0.1)
        running.began = time.time()
        if case.outside:
            case.outside(running)
    said: dict[str, float] = {}  # what was expected, and when it was said
    seen: dict[tuple[str, str], tuple[float, float]] = {}
    kept: set[str] = set()  # who was accused after the end of the fault
    findings: list[str] = []
    limit = time.time() + _START + case.known + case.lasts
    read = 0
    while time.time() < limit:
        began = running.since()
        status = running.ask()
        now = time.time()
        if status is not None:
            for who, cause, chronic in accusations(status):
                first, _ = seen.get((who, cause), (now, now))
                seen[who, cause] = (first, now)
                ended = running.ended()
                if chronic and case.clears is not None and 0 < ended < now - case.clears:
                    kept.add(f"{who}: {cause}")
                if cause in case.expect.get(who, ()) and case.chronic in (None, chronic):
                    said.setdefault(who, now)
            findings = status["findings"] or findings
        lines = [*running.lines[read:], *((now, f"finding: {line}") for line in findings)]
        read = len(running.lines)
        for when, line in lines:
            if when < start:
                continue  # ranks that start slowly
            for pattern in case.says:
                if re.search(pattern, line):
                    said.setdefault(pattern, when)
            for pattern in case.warns:
                if "waited" in line and not line.startswith("finding") and re.search(pattern, line):
                    said.setdefault(pattern, when)
            for match in _LINE.finditer(line):
                seen.setdefault((f"{match[1]} {match[2]}", "line"), (when, when))
            if warning := _WARNING.search(line):
                for number in _RANK.findall(warning[1]):
                    # The warning itself may say that this rank waits for others.
                    if re.search(rf"; (each of )?ranks? [^;]*\b{number}\b[^;]* waits? ", line):
                        continue
                    # Or that it waits for those who are to blame.
                    if any(who in line.partition("; ")[2] for who in case.expect):
                        continue
                    seen.setdefault((f"rank {number}", "warning"), (when, when))
        complete = all(item in said for item in case.wanted)
        if began:
            lasts = max(case.known, WARN_AFTER) + GRACE + _AFTER if case.wanted else case.lasts
            lasts = max(lasts, case.lasts) if case.clears is not None else lasts
            limit = min(limit, began + lasts + (0 if complete else _AFTER))
        elif time.time() > start + 30 or running.over():
            break
        time.sleep(0.05)
    allowed = {*case.expect, *case.also}
    others = sorted({f"{who}: {why}" for who, why in seen if who not in allowed})
    text = "; ".join(
        sorted({f"{who}: {why}" for who, why in seen if why not in ("line", "warning", "binds")})
    )
    after = None
    complete = all(item in said for item in case.wanted)
    if complete and said:
        known = dict.fromkeys(case.warns, WARN_AFTER)
        after = max(
            when - running.began - known.get(what, case.known) for what, when in said.items()
        )
    # What is said last about those who are accused must be right, too.
    causes = [
        (who, why, last)
        for (who, why), (_, last) in seen.items()
        if who in case.expect and why not in ("line", "warning", "binds", "missing", "unknown")
    ]
    right = {
        who: max((last for one, why, last in causes if one == who and why in good), default=0)
        for who, good in case.expect.items()
    }
    wrong = [
        f"{who}: {why}"
        for who, why, last in causes
        if why not in case.expect[who] and last > right[who] + 0.3
    ]
    if others or wrong or kept:
        verdict = "wrong"
        text += f" [not expected: {', '.join(others or wrong or kept)}]"
    elif not complete:
        verdict = "missed"
        text += f" [missing: {[item for item in case.wanted if item not in said]}]"
    else:
        verdict = "right" if after is None or after <= GRACE else "slow"
    output = "\n".join(f"{when - running.began:8.2f} {line}" for when, line in running.lines)
    return Result(case, verdict, text, after, output, findings)
