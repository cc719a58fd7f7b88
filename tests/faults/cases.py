"""Makes system calls fail one at a time, and checks that every rank succeeds or gets an error.

Usage: python tests/faults/cases.py LIBRARY [--sample N] [--only TEXT] ...

LIBRARY is built from tests/faults/inject.cc. Each layout first runs without faults, to count the
calls of every process in every phase. A case is one process, one phase, one system call, the number
n of the call that fails, and one error. The error comes once, or for all later calls too, as with a
limit. Processes are forked from this one, so that a case needs milliseconds and not the
start of an interpreter.

A case passes if every process ends by itself within the connect timeout and 5 s, with status 0.
Time for which processes were ready to run and got no processor does not count. Every operation must
return the right bits or raise a HerringError. No signal may stay blocked, no
process may use too much processor time, and no file may be left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
CONNECT_TIMEOUT = 3.0
PATIENCE = 5.0  # seconds after the connect timeout
MOST_STARVED = 60.0  # seconds without a processor that do not count
MOST_CPU = 1.2  # seconds; a process takes 0.1 to 0.3 without faults
# The number of processes; two are ranks.
LAYOUTS = {"node": 2, "nodes": 2, "served": 3, "tls": 3, "failover": 4}
RANKS = 2
MOST_LINES = 60  # lines shown of a failed process's output
HEAD = 7  # int32s of a record's head: phase, call, in_phase, nth, error, onwards, failed

ONCE: dict[str, tuple[str, ...]] = {
    "socket": ("EMFILE", "ENOBUFS"),
    "bind": ("EADDRINUSE",),
    "listen": ("EADDRINUSE",),
    "accept4": ("EMFILE", "ECONNABORTED", "EINTR", "EPERM"),
    "connect": ("ECONNREFUSED", "ETIMEDOUT", "EADDRNOTAVAIL", "EPERM"),
    "epoll_create1": ("EMFILE",),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "eventfd": ("ENFILE",),
    "memfd_create": ("ENOMEM",),
    "mmap": ("ENOMEM",),
    "ftruncate": ("EPERM", "ENOMEM"),
    "fstat": ("ENOMEM",),
    "sendmsg": ("ECONNRESET", "EPIPE", "ENOBUFS", "EINTR", "EAGAIN"),
    "send": ("ECONNRESET", "EPIPE", "ENOBUFS", "EINTR", "EAGAIN"),
    "recv": ("ECONNRESET", "ENOMEM", "EINTR", "EAGAIN", "ETIMEDOUT"),
    "recvmsg": ("ECONNRESET", "ENOMEM", "EINTR", "EAGAIN", "ETIMEDOUT"),
    "recvmmsg": ("ECONNRESET", "ENOMEM", "EINTR", "EAGAIN"),
    "read": ("EINTR",),
    "write": ("EINTR",),
    "getsockopt": ("ENOBUFS",),
    "setsockopt": ("ENOPROTOOPT", "ENOMEM"),
    "getsockname": ("ENOBUFS",),
    "getpeername": ("ENOTCONN", "ENOBUFS"),
    "pthread_create": ("EAGAIN",),
    "vmsplice": ("ENOMEM", "EAGAIN"),
    "splice": ("ENOMEM", "EINTR", "EPIPE"),
    "getrandom": ("ENOSYS",),
    "pipe2": ("EMFILE",),
    "fcntl": ("EPERM",),
    "poll": ("EINTR", "ENOMEM"),
    "open": ("EMFILE", "EACCES", "ENOENT"),
    "rename": ("ENOSPC", "EACCES"),
    "new": ("ENOMEM",),
    "full": ("ENOSPC", "EIO"),  # a write to a file
}
ONWARDS = {
    "descriptors": "EMFILE",
    "accept4": "EMFILE",
    "epoll_ctl": "ENOSPC",
    "memfd_create": "ENOMEM",
    "mmap": "ENOMEM",
    "pthread_create": "EAGAIN",
    "pipe2": "EMFILE",
    "open": "EMFILE",
    "vmsplice": "ENOMEM",
    "full": "ENOSPC",
}


@dataclass(frozen=True)
class Case:
    """One fault. With `leaves`, `shutdown` leaves the job; otherwise the process's end does."""

    layout: str
    leaves: bool
    role: int
    phase: int
    call: str
    nth: int
    error: str
    onwards: bool

    def __str__(self) -> str:
        how = "on" if self.onwards else "once"
        leaves = "leave" if self.leaves else "end"
        return (
            f"{self.layout}/{leaves}/{self.role}/{self.phase}/{self.call}/{self.nth}/"
            f"{self.error}/{how}"
        )


def parse_case(text: str) -> Case:
    """Returns the case whose `str` is `text`."""
    layout, leaves, role, phase, call, nth, error, how = text.split("/")
    return Case(
        layout, leaves == "leave", int(role), int(phase), call, int(nth), error, how == "on"
    )


def is_nanobinds(output: Path) -> bool:
    """Returns whether nanobind, not Herring, made the failed allocation whose stack was printed.

    If nanobind cannot allocate memory for Python's objects, it ends the process: its functions let
    no exception through.
    """
    failed, _, _ = output.read_text(errors="replace").partition("has failed; aborted")
    frames = re.findall(r"/(_core\.[^/(]*)\(\+(0x[0-9a-f]+)\)", failed)
    if not frames:
        return False
    # The installed module has no symbols; it was made from the file in build/bindings.
    built = ROOT / "build/bindings" / frames[0][0]
    addresses = [hex(int(address, 16) - 1) for _, address in frames]
    lines = subprocess.run(
        ["addr2line", "-i", "-e", built, *addresses],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()
    own = [line for line in lines if "/c++/" not in line]  # without frames of the standard library
    return bool(own) and "/nanobind/" in own[0]


class Library:
    """The preloaded library and the records that it shares with processes."""

    def __init__(self) -> None:
        own = ctypes.CDLL(None)
        own.herring_faults_name.restype = ctypes.c_char_p
        own.herring_faults_bytes.restype = ctypes.c_size_t
        own.herring_faults_use.restype = ctypes.c_bool
        own.herring_faults_use.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._own = own
        self.calls: list[str] = []
        while name := own.herring_faults_name(len(self.calls)):
            self.calls.append(name.decode())
        self.bytes = own.herring_faults_bytes()

    def record(self, case: Case | None) -> mmap.mmap:
        """Creates the record of a process; if `case` is None, no call fails."""
        made = mmap.mmap(-1, self.bytes)
        call = -1 if case is None else self.calls.index(case.call)
        if case is None:
            made[: 4 * HEAD] = struct.pack(f"{HEAD}i", 0, call, 0, 0, 0, 0, 0)
        else:
            number = getattr(errno, case.error)
            made[: 4 * HEAD] = struct.pack(
                f"{HEAD}i", 0, call, case.phase, case.nth, number, case.onwards, 0
            )
        return made

    def use(self, record: mmap.mmap) -> None:
        """From now on, counts this process's calls in `record`, and makes calls fail as it says."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(record))  # until the process ends
        address = ctypes.addressof(ctypes.c_char.from_buffer(record))
        if not self._own.herring_faults_use(address, b"/herring/_core."):
            raise RuntimeError("the extension module of herring is not loaded")

    def counts(self, record: mmap.mmap) -> dict[tuple[int, str], int]:
        """Returns the number of calls by phase and name."""
        numbers = struct.unpack(f"{self.bytes // 4}i", record[: self.bytes])[HEAD:]
        width = len(self.calls)
        return {
            (phase, name): numbers[phase * width + i]
            for phase in range(4)
            for i, name in enumerate(self.calls)
            if numbers[phase * width + i] > 0
        }


@dataclass
class Run:
    """A job whose processes are running or have ended."""

    case: Case | None
    records: list[mmap.mmap]
    folder: Path
    pids: dict[int, int] = field(default_factory=dict)  # running processes and their roles
    began: float = field(default_factory=time.monotonic)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    aborted: bool = False  # by nanobind, so that files are left behind
    delays: dict[int, float] = field(default_factory=dict)  # without a processor, by process

    def failed(self) -> int:
        """Returns how many calls have failed."""
        return sum(struct.unpack("7i", record[:28])[6] for record in self.records)


def live(
    library: Library, run: Run, layout: str, leaves: bool, role: int, listener: socket.socket
) -> NoReturn:
    """Runs in the forked process, up to the end of its interpreter."""
    import scenario

    record = run.records[role]
    # A server does not know the job's phases, so rank 0 also writes them to the servers' records.
    shown = [record, *run.records[RANKS:]] if role == 0 else [record]

    def enter(phase: int) -> None:
        for one in shown:
            one[:4] = struct.pack("i", phase)

    output = os.open(run.folder / f"output.{role}", os.O_WRONLY | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(output, standard)
    port, descriptor = listener.getsockname()[1], listener.fileno()
    if role != 0:
        listener.close()
    os.environ.update(scenario.environment(role, RANKS, layout, port, descriptor))
    os.environ["HERRING_CONNECT_TIMEOUT"] = str(CONNECT_TIMEOUT)
    os.environ["TMPDIR"] = str(run.folder / "tmp")
    os.environ["XDG_RUNTIME_DIR"] = str(run.folder / "run")
    library.use(record)
    result = scenario.live(enter, leaves) if role < RANKS else scenario.serve()
    (run.folder / f"result.{role}").write_text(json.dumps(result))
    sys.exit(0)


def begin(library: Library, case: Case | None, layout: str, leaves: bool) -> Run:
    """Starts the processes of a case."""
    roles = range(LAYOUTS[layout])
    records = [library.record(case if case and case.role == role else None) for role in roles]
    run = Run(case, records, Path(tempfile.mkdtemp(prefix="faults-")))
    (run.folder / "tmp").mkdir()
    (run.folder / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        os.set_inheritable(listener.fileno(), True)
        for role in roles:
            pid = os.fork()
            if pid == 0:
                live(library, run, layout, leaves, role, listener)
            run.pids[pid] = role
    run.began = time.monotonic()
    return run


def starved(run: Run) -> float:
    """Returns for how many seconds a process of the run has waited for a processor."""
    seconds = 0.0
    for pid in run.pids:
        delays = [0.0]
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                delays.append(int(path.read_text().split()[1]) / 1e9)
        # Its threads may wait at the same time. Processes may wait for each other in turn.
        run.delays[pid] = max(*delays, run.delays.get(pid, 0.0))
        seconds += run.delays[pid]
    return min(seconds, MOST_STARVED)


def watch(run: Run) -> bool:
    """Collects ended processes, kills late ones, and returns True once all have ended."""
    run.seconds = time.monotonic() - run.began
    for pid, role in list(run.pids.items()):
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if not found:
            continue
        del run.pids[pid]
        run.wrong += wrong_end(run, role, status, usage.ru_utime + usage.ru_stime)
    patience = CONNECT_TIMEOUT + PATIENCE
    if run.pids and run.seconds > patience and run.seconds > patience + starved(run):
        for pid, role in run.pids.items():
            run.wrong.append(f"process {role} has not ended after {run.seconds:.1f} s")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        run.pids.clear()
    if run.pids:
        return False
    # Flight records and timelines stay: they are for people.
    left = [
        path.name
        for path in [*(run.folder / "tmp").rglob("*"), *(run.folder / "run").rglob("*")]
        if (path.is_file() or path.is_socket())
        and not path.name.endswith((".flight.json", "timeline.json"))
    ]
    if left and not run.aborted:
        run.wrong.append(f"left behind: {', '.join(left)}")
    return True


def wrong_end(run: Run, role: int, status: int, cpu: float) -> list[str]:
    """Returns what is wrong with the end of a process."""
    wrong = []
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGABRT and is_nanobinds(run.folder / f"output.{role}"):
            run.aborted = True
            return []
        wrong.append(f"process {role} ended by {signal.Signals(os.WTERMSIG(status)).name}")
    elif os.WEXITSTATUS(status) != 0:
        wrong.append(f"process {role} ended with status {os.WEXITSTATUS(status)}")
    if cpu > MOST_CPU:
        wrong.append(f"process {role} took {cpu:.1f} s of CPU")
    path = run.folder / f"result.{role}"
    if path.exists():
        result: dict[str, Any] = json.loads(path.read_text())
        for phase, name, typed, text in result["errors"]:
            if not typed:
                wrong.append(f"process {role}, {phase}: {name}: {text}")
        if result["blocked"]:
            wrong.append(f"process {role}: blocked are {', '.join(result['blocked'][:4])} ...")
    else:
        wrong.append(f"process {role} has not come to its end")
    return wrong


def report(run: Run) -> str:
    """Returns all that is known about a run."""
    lines = [f"{run.case}: {run.seconds:.1f} s; " + "; ".join(run.wrong)]
    for role in range(len(run.records)):
        for kind in ("result", "output"):
            path = run.folder / f"{kind}.{role}"
            text = path.read_text(errors="replace").strip() if path.exists() else "(none)"
            lines += [f"    {role} {kind}: {line}" for line in text.splitlines()[-MOST_LINES:]]
    return "\n".join(lines)


def chosen(count: int) -> list[int]:
    """Returns which of `count` calls are made to fail, counted from 1."""
    few = {1, 2, 3, 4, count // 4, count // 2, 3 * count // 4, count - 1, count}
    return sorted(n for n in few if 1 <= n <= count)


def all_cases(library: Library) -> list[Case]:
    """Counts the calls of each layout and returns the cases of all layouts."""
    cases: list[Case] = []
    for layout, processes in LAYOUTS.items():
        for leaves in (True, False):
            run = begin(library, None, layout, leaves)
            while not watch(run):
                time.sleep(0.005)
            if run.wrong:
                sys.exit("without a fault: " + report(run))
            shutil.rmtree(run.folder)
            for role in range(processes):
                for (phase, call), count in library.counts(run.records[role]).items():
                    if leaves != (phase < 3):
                        continue  # Test the end of a process only if `shutdown` was not called.
                    nths = chosen(count)
                    for error in ONCE.get(call, ()):
                        cases += [
                            Case(layout, leaves, role, phase, call, n, error, False) for n in nths
                        ]
                    if call in ONWARDS:
                        cases += [
                            Case(layout, leaves, role, phase, call, n, ONWARDS[call], True)
                            for n in nths
                        ]
    return cases


def spread(cases: list[Case], number: int, seed: int) -> list[Case]:
    """Returns `number` cases, spread evenly over calls and phases."""
    shuffled = random.Random(seed).sample(cases, len(cases))
    kinds: Counter[tuple[str, int]] = Counter()
    order = []
    for case in shuffled:
        kind = (case.call, case.phase)
        order.append((kinds[kind], case))
        kinds[kind] += 1
    return [case for _, case in sorted(order, key=lambda one: one[0])[:number]]


def run_all(library: Library, cases: list[Case], parallel: int, verbose: bool) -> list[Run]:
    """Runs the cases; returns the failed runs. Cases whose call was not made do not count."""
    waiting, running, wrong, reached = list(reversed(cases)), [], [], 0
    calls: Counter[str] = Counter()
    while waiting or running:
        while waiting and len(running) < parallel:
            case = waiting.pop()
            running.append(begin(library, case, case.layout, case.leaves))
        for run in list(running):
            if not watch(run):
                continue
            running.remove(run)
            reached += run.failed() > 0
            if run.wrong:
                wrong.append(run)
                calls[run.case.call if run.case else ""] += 1
                print(report(run), flush=True)
            elif verbose:
                print(report(run), flush=True)
            shutil.rmtree(run.folder)
        time.sleep(0.005)
    print(f"{reached - len(wrong)} of {reached} cases right ({len(cases)} tried)", flush=True)
    if wrong:
        print("wrong by call: " + ", ".join(f"{name} {n}" for name, n in calls.most_common()))
        print("repeat them, several times, because threads decide which call is the n-th:")
        names = " ".join(f"--case {run.case}" for run in wrong)
        print(f"  {Path(sys.executable)} {sys.argv[0]} {sys.argv[1]} --verbose {names}", flush=True)
    return wrong


def main() -> None:
    """Runs the cases that the command line chooses."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("library", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="so many cases of all kinds alike")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--case", action="append", default=[], help="this case alone")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    library_path = str(options.library.resolve())
    if os.environ.get("LD_PRELOAD") != library_path:
        os.environ.update(LD_PRELOAD=library_path, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    import scenario  # noqa: F401 - loaded once, for all forked processes

    from herring import _core  # noqa: F401

    del os.environ["LD_PRELOAD"]
    library = Library()
    cases = [parse_case(text) for text in options.case]
    if not cases:
        cases = [case for case in all_cases(library) if options.only in str(case)]
        if options.sample:
            cases = spread(cases, options.sample, options.seed)
    sys.exit(1 if run_all(library, cases, options.parallel, options.verbose) else 0)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        os._exit(3)
