"""What `herring run` says at the end: the cause."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from herring.launch.causes import find_cause, hint
from herring.launch.children import Child
from herring.launch.hosts import THIS_MACHINE
from herring.launch.options import Task
from herring.launch.tracebacks import LastWords
from jobs import PROGRAMS
from launched import run


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def children(*codes: int) -> list[Child]:
    found = []
    for number, code in enumerate(codes):
        task = Task(f"rank {number}", THIS_MACHINE, number, number, {})
        found.append(Child(task, pid=100 + number, ended=True, code=code, ended_at=10.0))
        if code == -signal.SIGTERM:
            found[-1].told, found[-1].stopped_at = {signal.SIGTERM}, 9.5
    return found


def raised(error: str, at: float, line: str = "", line_at: float = 0.0) -> LastWords:
    """What a process with a traceback said; `line` came after it."""
    return LastWords(error, (error,), at, not line, line, line_at or at)


def printed(line: str, at: float) -> LastWords:
    return LastWords(line=line, line_at=at)


def cause_of(first: Child, found: list[Child], words: dict[int, LastWords]) -> tuple[Child, str]:
    return find_cause(first, found, lambda number: words.get(number, LastWords()))


IN_RANK = "PeerLostError: server 1 (10.0.0.1:5, in the process of rank 1 (10.0.0.1, pid 9)) is lost"
LATE = "herring.errors.TimeoutError: 'x' has waited 5 s for rank 1 (127.0.0.1, pid 9)"
LOST = "herring.errors.PeerLostError: 'x' cannot complete: rank {} (127.0.0.1, pid 9) has left"
WRAPPED = LastWords("RuntimeError: step 3", ("KeyError", LOST.format(1)), 6.0, True)


@pytest.mark.parametrize(
    ("codes", "words", "first", "cause"),
    [
        # The only one.
        ([0, 1], {1: raised("ValueError", 5.0)}, 1, 1),
        # It raised an error first and ended last; the launcher stopped it on its way out.
        ([1, -15], {0: raised(LOST.format(1), 6.0), 1: raised("ValueError", 5.0)}, 0, 1),
        # Another library's error names nobody.
        (
            [1, 1],
            {0: raised("RuntimeError: closed", 6.0), 1: raised("ValueError", 5.0, "bye", 5.1)},
            0,
            1,
        ),
        # Killed, so without a word.
        ([1, -9], {0: raised(LOST.format(1), 6.0)}, 0, 1),
        # The connection to the server in its process was the first to end.
        ([1, -9], {0: raised(IN_RANK, 6.0)}, 0, 1),
        # A chain.
        (
            [1, 1, -11],
            {0: raised(LOST.format(1), 6.0), 1: raised(LOST.format(2), 7.0)},
            0,
            2,
        ),
        # Who left in peace has not failed.
        ([1, 0], {0: raised(LOST.format(1), 6.0)}, 0, 0),
        # Two that name each other: the later error follows from the earlier one.
        ([1, 1], {0: raised(LOST.format(1), 6.0), 1: raised(LOST.format(0), 6.5)}, 0, 0),
        # One that was stopped and had shown an old traceback before, and has gone on.
        ([3, -15], {1: raised("ValueError", 1.0, "step 9", 9.0)}, 0, 0),
        # One that was waited for, and has only printed a warning before it was stopped.
        ([1, -15], {0: raised(LATE, 6.0), 1: printed("step 1", 1.0)}, 0, 0),
        # It ended with a status of its own when it was stopped.
        ([1, 1], {0: raised(LATE, 6.0), 1: printed("step 1", 1.0)}, 0, 0),
        # It lost the other then, because of the timeout.
        ([1, 1], {0: raised(LATE, 6.0), 1: raised(LOST.format(0), 6.5)}, 0, 0),
        # One that failed by itself, without a word, and another one that does not name it.
        ([1, -15, 3], {0: raised(LATE, 6.0)}, 0, 2),
        # An error that follows from the loss of another one does not always say so itself.
        ([1, 1], {0: WRAPPED, 1: raised("ValueError", 9.0)}, 0, 1),
        # Errors that others had only when they were stopped.
        ([3, 1], {1: raised("Stopped", 99.0)}, 0, 0),
    ],
)
def test_the_cause(codes: list[int], words: dict[int, LastWords], first: int, cause: int) -> None:
    found = children(*codes)
    if words.get(0, LastWords()).error == LATE and len(codes) == 2:
        found[1].stopped_at = 7.0
    child, _ = cause_of(found[first], found, words)
    assert child.task.number == cause


VAGUE = "herring.errors.PeerLostError: a server ended its connection without a goodbye"


@pytest.mark.parametrize(
    ("codes", "words", "ends", "first", "cause", "says"),
    [
        # Others fail because of it, and their errors are seen earlier and name nobody.
        ([1, 1, -9], {0: raised(VAGUE, 5.0), 1: raised(VAGUE, 5.1)}, {}, 0, 2, "it was killed by"),
        # What it said last is not why.
        ([1, -9], {1: printed("step 7", 4.0)}, {}, 1, 1, "(signal 9); its last line was: step 7"),
        # Nor is the exception that it had got over.
        ([1, 3], {1: raised("OSError", 4.0, "step 7", 9.0)}, {}, 1, 1, "showed was: OSError"),
        # What came after the exception that ended it.
        ([1, 1], {1: raised("OSError", 4.0, "bye", 4.1)}, {}, 1, 1, ": OSError; its last line was"),
        # A fatal error says enough.
        ([1, -11], {1: raised("Fatal Python error: x", 9.0)}, {}, 1, 1, ": Fatal Python error: x"),
        # Another one failed before, and it crashed only because of that.
        ([1, -6], {0: raised("ValueError: bad", 9.0)}, {0: 10.5}, 1, 0, "ValueError: bad"),
        # Another one failed before without a word.
        ([3, -6], {}, {0: 9.0}, 0, 0, "it exited with status 3"),
        # Another one was told to end, and ended with a status of its own.
        ([1, -9], {0: printed("epoch 1", 2.0)}, {0: 11.0}, 1, 1, "it was killed by SIGKILL"),
        # Of two, the earlier one.
        ([-9, -9], {}, {1: 9.0}, 0, 1, "it was killed by SIGKILL"),
        # One that the launcher stopped.
        ([1, -15], {0: raised(VAGUE, 5.0)}, {1: 9.8}, 0, 0, VAGUE),
    ],
)
def test_a_process_that_nobody_of_us_killed_is_the_cause(
    codes: list[int],
    words: dict[int, LastWords],
    ends: dict[int, float],
    first: int,
    cause: int,
    says: str,
) -> None:
    found = children(*codes)
    for number, moment in ends.items():
        found[number].ended_at = moment
    child, text = cause_of(found[first], found, words)
    assert child.task.number == cause
    assert says in text


def test_a_process_that_the_launcher_killed_at_the_end_was_not_killed_before() -> None:
    """It stood still, the others lost it, and SIGTERM did not end it."""
    found = children(1, -9)
    found[1].told = {signal.SIGTERM, signal.SIGKILL}
    words = {0: raised(LOST.format(1), 6.0)}
    child, text = cause_of(found[0], found, words)
    assert child.task.number == 1
    assert text.endswith("it did not answer the others, nor end before the launcher killed it")


@pytest.mark.parametrize("successor", [0, 1, -15])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: bad", 0),
        ("PeerLostError: server 1 (10.0.0.1:5) is lost: its connection ended", 2),
    ],
    ids=["something-else", "its-loss"],
)
def test_a_server_that_the_job_outlived_is_the_cause_only_if_an_error_names_it(
    error: str, cause: int, successor: int
) -> None:
    found = children(1, -15, -9, successor)
    found[2].ended_at = 7.0
    found[2].spared = True
    for number in (2, 3):  # the server and its successor
        found[number].task = Task("server 1", THIS_MACHINE, None, number, {})
    words = {0: raised(error, 9.0)}
    child, _ = cause_of(found[0], found, words)
    assert child.task.number == cause


@pytest.mark.parametrize("servers", ["0", "1"])
def test_the_cause_is_named_at_the_end(servers: str) -> None:
    pytest.importorskip("herring._core")
    code = """
import herring, numpy
herring.init()
if herring.rank() == 1:
    raise ValueError("no data")
herring.allreduce(numpy.ones(1000, numpy.float32), name="x")
"""
    done = run("-n", "3", "--nodes", "3", "--servers", servers, *python(code))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r".* \[herring run\] error: the cause: rank 1 \(process \d+\) failed first, "
        r"at \d\d:\d\d:\d\d: ValueError: no data",
        last,
    ), done.stderr


# What a program does on rank 1, while rank 0 averages with it.
ENDS = {
    "ignored-at-exit": (
        "class X:\n    def __del__(self): raise KeyError('in vain')\nkept = X()\n"
        "raise ValueError('no data')",
        r"ValueError: no data",
    ),
    "warning-after": (
        "import atexit, warnings\natexit.register(warnings.warn, 'leaked semaphores')\n"
        "raise ValueError('no data')",
        r"ValueError: no data",
    ),
    "got-over": (
        "import os, traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\n"
        "print('going on', file=sys.stderr)\nos._exit(3)",
        r"it exited with status 3; the last exception that it showed was: ZeroDivisionError: .*",
    ),
    "own-words": (
        "import warnings\nwarnings.warn('lr is 0')\nsys.exit('no data')",
        r"it exited with status 1; its last line was: no data",
    ),
    "thread": (
        "import os, threading\ndef f(): raise ValueError('no data')\n"
        "thread = threading.Thread(target=f); thread.start(); thread.join()\nos._exit(1)",
        r"ValueError: no data",
    ),
    "group": (
        "raise BaseExceptionGroup('loaders', [ValueError('no data'), KeyError('x')])",
        r"ExceptionGroup: loaders \(2 sub-exceptions\): ValueError: no data",
    ),
    "abort": (
        "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
        r"Fatal Python error: Aborted",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_cause_is_what_ended_the_first_rank_that_failed(case: str) -> None:
    pytest.importorskip("herring._core")
    code, said = ENDS[case]
    if case == "group" and sys.version_info < (3, 11):
        pytest.skip("exception groups came with Python 3.11")
    program = f"""
import herring, numpy, sys
herring.init()
if herring.rank() == 1:
    exec({code!r})
herring.allreduce(numpy.ones(1000, numpy.float32), name="x")
"""
    done = run("-n", "2", "--nodes", "2", *python(program))
    last = done.stderr.splitlines()[-1]
    pattern = rf".*error: the cause: rank 1 \(process \d+\) failed first, at [\d:]+: {said}"
    assert re.fullmatch(pattern, last), done.stderr


def test_a_rank_that_is_waited_for_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has printed a warning, computes, and ends with a status of its own when it is stopped."""
    pytest.importorskip("herring._core")
    monkeypatch.setenv("HERRING_TIMEOUT", "1")
    program = """
import herring, numpy, signal, sys, warnings
herring.init()
if herring.rank() == 0:
    warnings.warn("find_unused_parameters=True was specified")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    while True:
        signal.pause()
herring.allreduce(numpy.ones(1000, numpy.float32), name="x")
"""
    done = run("-n", "2", "--nodes", "2", *python(program))
    last = done.stderr.splitlines()[-1]
    assert re.search(r"the cause: rank 1 \(.* failed first, at [\d:]+: .*TimeoutError: ", last), (
        done.stderr
    )


def test_a_rank_that_is_killed_is_the_cause_and_its_status_counts() -> None:
    pytest.importorskip("herring._core")
    code = """
import herring, numpy, os, signal
herring.init()
if herring.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
herring.allreduce(numpy.ones(1000, numpy.float32), name="x")
"""
    done = run("-n", "2", "--nodes", "2", *python(code))
    assert done.returncode == 128 + signal.SIGKILL
    assert re.search(r"rank 1 \(process \d+\) was killed by SIGKILL", done.stderr)
    assert re.search(
        r"error: the cause: rank 1 \(process \d+\) failed first, at \S+: it was killed by SIGKILL",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_a_server_that_is_killed_is_the_cause() -> None:
    pytest.importorskip("herring._core")
    code = """
import herring, numpy, os, signal, sys
herring.init()
herring.barrier()
if herring.rank() == 0:
    sys.path.append(sys.argv[1])
    from support import server_process
    os.kill(server_process(), signal.SIGKILL)
for step in range(1000000):
    herring.allreduce(numpy.ones(1000, numpy.float32), name="x")
"""
    options = ["-n", "2", "--nodes", "2", "--servers", "1"]
    done = run(*options, *python(code), str(PROGRAMS))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert re.search(
        r"the cause: server 0 \(process \d+\) failed first, at \S+: it was killed by SIGKILL",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_variables_of_a_meeting_place_are_said_to_be_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERRING_RENDEZVOUS", "127.0.0.1:1")
    monkeypatch.setenv("HERRING_SECRET", "ab" * 32)
    done = run("-n", "1", "--", "true")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "warning: HERRING_RENDEZVOUS, HERRING_SECRET ignored: " in line
    monkeypatch.setenv("HERRING_JOB", "mine")
    text = "HERRING_RENDEZVOUS, HERRING_SECRET, HERRING_JOB ignored: "
    said = run("-n", "1", "--", "true").stderr
    assert text in said and "; --name says what status and metrics call it" in said
    # An enclosing job sets them for its workers.
    monkeypatch.setenv("HERRING_JOB", "run-1-ab")
    assert run("-n", "1", "--", "true").stderr == ""


def test_horovod_without_the_option_has_a_hint(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd\n")
    done = run("-n", "1", "--", sys.executable, "-S", str(script))
    assert done.returncode == 1
    assert "'herring run --horovod'" in done.stderr.splitlines()[-1]
    assert hint("ModuleNotFoundError: No module named 'horovod.torch'")
    assert not hint("ModuleNotFoundError: No module named 'horovodx'")
