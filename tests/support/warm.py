"""Starts Python programs by forking warm processes, instead of new interpreters.

To start an interpreter and to import numpy, herring and torch takes most of the time of a test's
job. `Popen` and `run` have the interface of those of `subprocess`. For a command that runs Python
they ask a nursery (nursery.py): a process that has imported all this once, and forks. There is one
nursery for each set of variables that matter when an interpreter starts. The launcher of a job is
forked, too, and starts servers and ranks in the same way, with the variables and descriptors that
it would give to new interpreters.

Tests of imports, of the command line, of fault injection and of what /proc tells of a process start
real processes with `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import inspect
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from herring.launch import guard

__all__ = ["STACKS", "Popen", "real_processes", "run", "start_from", "tell_stacks"]

HERE = Path(__file__).parent
STACKS = signal.SIGRTMAX  # lets forked processes write the stacks of their threads
_PLAIN = (
    *("numpy", "numpy.random", "hashlib", "logging", "traceback", "encodings.idna", "sysconfig"),
    *("csv", "email.parser", "encodings.ascii", "importlib.metadata", "importlib.resources"),
    *(
        "herring",
        "herring._core",
        "herring.process.answering",
        "herring.process.program",
        "herring.process.stacks",
    ),
    *("herring.command.cli", "herring.command.run", "herring.launch.launcher"),
    *("herring.launch.server", "herring.command.status"),
    *("herring.arrays", "herring.arrays.apart", "herring.arrays.grouped", "herring.arrays.groups"),
    *("herring.arrays.joining", "herring.arrays.messages", "herring.arrays.objects"),
    *("herring.arrays.runtime", "herring.arrays.seconds"),
    *("herring.elastic", "herring.elastic.running", "herring.partial"),
)
_TORCH = ("torch", "torch._dynamo", "herring.torch")
# Variables that count when a process starts.
_EARLY = re.compile(
    "LD_.*|PYTHON(?!UNBUFFERED|DONTWRITEBYTECODE|PATH$).*|LC_.*|LANG|MALLOC_.*|TORCH_.*"
)

_real = False
_nursery_of_launcher: socket.socket | None = None
_nurseries: dict[Any, socket.socket] = {}


Real = subprocess.Popen


class Popen(Real):
    """Starts a command like `subprocess.Popen`, but forks Python programs from a nursery."""

    _status_from: int | None = None

    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        given = _signature().bind(self, *arguments, **named).arguments
        request = _request(given)
        if request is None:
            super()._execute_child(*arguments, **named)  # type: ignore[misc]
            return
        descriptors = [
            0 if given["p2cread"] == -1 else given["p2cread"],
            1 if given["c2pwrite"] == -1 else given["c2pwrite"],
            2 if given["errwrite"] == -1 else given["errwrite"],
            *given["pass_fds"],
        ]
        if _nursery_of_launcher is not None:
            request["adopt"] = os.getpid()
            self.pid = _ask(_nursery_of_launcher, request, descriptors)
        else:
            self._status_from, to = os.pipe()
            self.pid = _ask(_nursery(request), request, [*descriptors, to])
            os.close(to)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status_from is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._status_from], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._status_from, 16)
        os.close(self._status_from)
        self._status_from = None
        return self.pid, int(status or signal.SIGKILL)

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._status_from is not None:
            with self._waitpid_lock:  # type: ignore[attr-defined]
                process, status = self._try_wait(os.WNOHANG)
                if process:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            return self.returncode
        return super()._internal_poll(_deadstate)  # type: ignore[misc,no-any-return]

    def __del__(self, *arguments: Any, **named: Any) -> None:
        super().__del__(*arguments, **named)
        if self._status_from is not None:
            os.close(self._status_from)


@contextlib.contextmanager
def real_processes() -> Iterator[None]:
    """Starts interpreters instead of forks until the end of a `with` block."""
    global _real
    before, _real = _real, True
    try:
        yield
    finally:
        _real = before


def run(
    command: Sequence[str],
    *,
    input: str | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a command like `subprocess.run`, but forks Python programs from a nursery."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            tell_stacks(process)
            raise
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def tell_stacks(process: subprocess.Popen[Any]) -> None:
    """Prints what a command has written, and the stacks of all its processes; ends the command.

    Forked processes write their stacks to their standard error when they get `STACKS`.
    """
    for each in _descendants(process.pid):
        if _catches(each, STACKS):
            os.kill(each, STACKS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)  # for the stacks to come
    process.terminate()
    try:
        out, err = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    for text in filter(None, (out, err)):
        print(text if isinstance(text, str) else text.decode(errors="replace"))


def _descendants(process: int) -> list[int]:
    """Returns the IDs of a process and of those that it has started, and so on."""
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found


def _catches(process: int, number: int) -> bool:
    """Returns whether a process handles a signal, which would end it otherwise."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def start_from(nursery: socket.socket) -> None:
    """Lets the launcher, which this process is about to become, start what it starts by forks."""
    global _nursery_of_launcher
    _nursery_of_launcher = nursery
    guard.adopt_orphans()
    subprocess.Popen = Popen  # type: ignore[misc]


@functools.cache
def _signature() -> inspect.Signature:
    return inspect.signature(Real._execute_child)  # type: ignore[attr-defined]


def _request(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what a nursery is asked for, or None for a command that needs a real process."""
    command = [os.fspath(word) for word in given["args"]]
    words = [word for word in command[1:] if word != "-u"]
    environment = dict(os.environ if given["env"] is None else given["env"])
    guarded = given["preexec_fn"] is not None and _nursery_of_launcher is not None
    real = (
        _real
        or given["shell"]
        or command[0] != sys.executable
        or not words
        or (words[0].startswith("-") and words[0] not in ("-c", "-m"))
        or (given["preexec_fn"] is not None and not guarded)
        or "LD_PRELOAD" in environment
        or given.get("process_group", -1) not in (-1, None)
    )
    if real:
        return None
    return {
        "command": command,
        "environment": environment,
        "folder": os.fspath(given["cwd"] or os.getcwd()),
        "keep": list(given["pass_fds"]),
        "session": bool(given["start_new_session"]),
        "guarded": guarded,
        "ignored": [
            number
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
            if signal.getsignal(number) is signal.SIG_IGN
        ],
        "adopt": 0,
    }


def _ask(nursery: socket.socket, request: dict[str, Any], descriptors: Sequence[int]) -> int:
    """Lets a nursery fork a process, and returns its ID."""
    content = array.array("i", descriptors)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)]
    nursery.sendmsg([json.dumps(request).encode()], rights)
    number = nursery.recv(16)
    if not number:
        raise OSError("the nursery that forks processes has died")
    return int(number)


def _nursery(request: dict[str, Any]) -> socket.socket:
    """Returns the nursery for a request, which is started if there is none yet."""
    environment = request["environment"]
    early = {name: value for name, value in environment.items() if _EARLY.fullmatch(name)}
    torch = _uses_torch(request["command"])
    key = (frozenset(early.items()), torch)
    if key not in _nurseries:
        _nurseries[key] = _start(early, torch)
    return _nurseries[key]


def _uses_torch(command: Sequence[str]) -> bool:
    """Returns whether one of the words, or a program that it names, speaks of torch."""
    for word in command:
        if "torch" in word.lower():
            return True
        if word.endswith(".py") and "torch" in _text(word):
            return True
    return False


@functools.cache
def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def _start(early: Mapping[str, str], torch: bool) -> socket.socket:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    base = {name: value for name, value in os.environ.items() if not _EARLY.fullmatch(name)}
    base = {name: value for name, value in base.items() if not name.startswith("HERRING_")}
    environment = {**base, "OMP_NUM_THREADS": "1", **early}
    modules = [*_PLAIN, *(_TORCH if torch else ())]
    with theirs:
        nursery = Real(
            [sys.executable, str(HERE / "nursery.py"), str(theirs.fileno()), *modules],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    if ours.recv(16) != b"warm":
        raise OSError(f"no nursery could be started with {modules} and {dict(early)}")
    atexit.register(_end, ours, nursery)
    return ours


def _end(requests: socket.socket, nursery: subprocess.Popen[bytes]) -> None:
    """Ends a nursery, and waits for it, so that its processor time counts as this process's."""
    requests.close()
    nursery.wait()
