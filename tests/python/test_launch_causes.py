"""What `herring run` says at the end: the cause, and who has never joined; whole tracebacks."""

from __future__ import annotations

import itertools
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from herring.launch.causes import find_cause, hint
from herring.launch.children import Child
from herring.launch.hosts import THIS_MACHINE
from herring.launch.job import Task
from herring.launch.tracebacks import Tracebacks
from herring.rendezvous.joined import Joined, tell
from jobs import PROGRAMS
from launched import run

TRACEBACK = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 3, in <module>\n'
    b"    1/0\n"
    b"    ~^~\n"
    b"ZeroDivisionError: division by zero\n"
)
CHAINED = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 3, in <module>\n'
    b"KeyError: 'a'\n"
    b"\n"
    b"During handling of the above exception, another exception occurred:\n"
    b"\n" + TRACEBACK
)
OF_TORCH = b"".join(b"[rank1]: " + line for line in TRACEBACK.splitlines(keepends=True))
GROUP = (
    b"  + Exception Group Traceback (most recent call last):\n"
    b'  |   File "x.py", line 1, in <module>\n'
    b"  | ExceptionGroup: two (2 sub-exceptions)\n"
    b"  +-+---------------- 1 ----------------\n"
    b"    | ValueError: 1\n"
    b"    +------------------------------------\n"
)
# The source of JAX has statements of several lines, whose carets begin in the first column.
CARETS = (
    b"Traceback (most recent call last):\n"
    b'  File "jax/_src/api.py", line 1, in vmap\n'
    b"    return flat_fun.call_wrapped(\n"
    b"^^^^^^^^^^\n"
    b"~~~~^^~~~~  \n"
    b"ValueError: vmap got inconsistent sizes\n"
)
LOG_LINE = b"2026-01-31 13:05:59.123 [herring rank 3] warning: what all ranks did last is in x\n"
# A thread of the core wrote its line while Python wrote.
WITH_LOG_LINES = TRACEBACK.replace(b"    1/0\n", b"    1/0\n" + LOG_LINE) + LOG_LINE
FATAL = (
    b"Fatal Python error: Segmentation fault\n\n"
    b"Current thread 0x00007f5d (most recent call first):\n"
    b'  File "<string>", line 1 in <module>\n'
)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


# Tracebacks in one piece.


@pytest.mark.parametrize("size", [1, 7, 10000])
@pytest.mark.parametrize(
    ("block", "error"),
    [
        (TRACEBACK, "ZeroDivisionError: division by zero"),
        (CHAINED, "ZeroDivisionError: division by zero"),
        (OF_TORCH, "ZeroDivisionError: division by zero"),
        (FATAL, "Fatal Python error: Segmentation fault"),
        (GROUP, "ExceptionGroup: two (2 sub-exceptions)"),
        (CARETS, "ValueError: vmap got inconsistent sizes"),
        (WITH_LOG_LINES, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_traceback_is_held_until_it_is_whole(block: bytes, error: str, size: int) -> None:
    found = Tracebacks()
    shown = []
    data = b"step 1\n" + block
    for start in range(0, len(data), size):
        shown.append(found.feed(data[start : start + size]))
    begun = b"".join(shown)
    assert found.due is not None
    # At once comes what is before it, and of its first line what came in a piece of its own.
    assert begun.startswith(b"step 1\n")
    assert b"\n" not in begun.removeprefix(b"step 1\n")
    assert begun + found.release() == data
    assert (found.error, found.ends_with_error, found.due) == (error, True, None)
    assert found.feed(b"more\n") == b"more\n"
    assert (found.error, found.ends_with_error, found.last_line) == (error, False, "more")


def test_nothing_else_is_held() -> None:
    found = Tracebacks()
    for data in (b"a\nb", b"c", b"say: Traceback (most recent call last):\n", b"  x\n", b"\x1b["):
        assert found.feed(data) == data
    assert found.due is None
    assert found.error == ""


def test_one_that_does_not_end_is_shown() -> None:
    found = Tracebacks()
    before = time.monotonic()
    found.feed(b"Traceback (most recent call last):\n  File")
    assert before < found.due <= time.monotonic() + 2
    shown = found.feed(b"\n  x" * (1 << 19))
    assert len(shown) > 1 << 20
    assert found.due is None


def test_tracebacks_of_ranks_do_not_mix(tmp_path: Path) -> None:
    # Frame by frame: nobody writes the next line before all have written the last one.
    code = (
        f"""
import os, sys, time
from pathlib import Path
folder = Path({str(tmp_path)!r})
"""
        + """
rank = os.environ["RANK"]
print("Traceback (most recent call last):", file=sys.stderr)
for line in range(20):
    print(f'  File "r{rank}", line {line}', file=sys.stderr)
    (folder / f"{line} {rank}").touch()
    while len(list(folder.glob(f"{line} *"))) < 3:
        time.sleep(0.001)
print(f"ValueError: of {rank}", file=sys.stderr)
sys.exit(1)
"""
    )
    done = run("-n", "3", "--keep-going", *python(code))
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "[herring run]" not in line]
    order = [line[:3] for line in lines]
    assert len(order) == 66
    assert sum(a != b for a, b in itertools.pairwise(order)) == 2, done.stderr


def test_what_a_rank_says_before_its_end_comes_before_what_is_said_of_it() -> None:
    code = "import os, time; 1 / int(os.environ['RANK']); time.sleep(1000)"
    done = run("-n", "2", *python(code))
    said = done.stderr
    assert said.index("ZeroDivisionError") < said.index("exited with status 1")


# The cause.


def children(*codes: int) -> list[Child]:
    found = []
    for number, code in enumerate(codes):
        task = Task(f"rank {number}", THIS_MACHINE, number, number, {})
        told = {signal.SIGTERM} if code == -signal.SIGTERM else set()
        found.append(Child(task, None, None, 100 + number, True, code, 10.0, told))
    return found


IN_RANK = "PeerLostError: server 1 (10.0.0.1:5, in the process of rank 1 (10.0.0.1, pid 9)) is lost"
LOST = "herring.errors.PeerLostError: 'x' cannot complete: rank {} (127.0.0.1, pid 9) has left"


@pytest.mark.parametrize(
    ("codes", "words", "first", "cause"),
    [
        # The only one.
        ([0, 1], {1: ("ValueError", 5.0, True)}, 1, 1),
        # It raised an error first and ended last; the launcher stopped it on its way out.
        ([1, -15], {0: (LOST.format(1), 6.0, True), 1: ("ValueError", 5.0, True)}, 0, 1),
        # Another library's error names nobody.
        ([1, 1], {0: ("RuntimeError: closed", 6.0, True), 1: ("ValueError", 5.0, False)}, 0, 1),
        # Killed, so without a word.
        ([1, -9], {0: (LOST.format(1), 6.0, True)}, 0, 1),
        # The connection to the server in its process was the first to end.
        ([1, -9], {0: (IN_RANK, 6.0, True)}, 0, 1),
        # A chain.
        (
            [1, 1, -11],
            {0: (LOST.format(1), 6.0, True), 1: (LOST.format(2), 7.0, True)},
            0,
            2,
        ),
        # Who left in peace has not failed.
        ([1, 0], {0: (LOST.format(1), 6.0, True)}, 0, 0),
        # Two that name each other.
        ([1, 1], {0: (LOST.format(1), 6.0, True), 1: (LOST.format(0), 6.5, True)}, 0, 1),
        # One that was stopped and had shown an old traceback before, and has gone on.
        ([3, -15], {0: ("", 0.0, False), 1: ("ValueError", 1.0, False)}, 0, 0),
        # Errors that others had only when they were stopped.
        ([3, 1], {0: ("", 0.0, False), 1: ("Stopped", 99.0, True)}, 0, 0),
    ],
)
def test_the_cause(
    codes: list[int], words: dict[int, tuple[str, float, bool]], first: int, cause: int
) -> None:
    found = children(*codes)
    child, _ = find_cause(found[first], 10.0, found, lambda n: words.get(n, ("", 0.0, False)))
    assert child.task.number == cause


VAGUE = "herring.errors.PeerLostError: a server ended its connection without a goodbye"


@pytest.mark.parametrize(
    ("codes", "words", "ends", "first", "cause", "says"),
    [
        # Others fail because of it, and their errors are seen earlier and name nobody.
        ([1, 1, -9], {0: (VAGUE, 5.0, True), 1: (VAGUE, 5.1, True)}, {}, 0, 2, "it was killed by"),
        # What it said last is not why.
        ([1, -9], {1: ("step 7", 4.0, False)}, {}, 1, 1, "(signal 9); its last line was: step 7"),
        # A fatal error says enough.
        ([1, -11], {1: ("Fatal Python error: x", 9.0, True)}, {}, 1, 1, ": Fatal Python error: x"),
        # Another one failed before, and it crashed only because of that.
        ([1, -6], {0: ("ValueError: bad", 9.0, True)}, {0: 10.5}, 1, 0, "ValueError: bad"),
        # Another one failed before without a word.
        ([3, -6], {}, {0: 9.0}, 0, 0, "it exited with status 3"),
        # Another one was told to end, and ended with a status of its own.
        ([1, -9], {0: ("epoch 1", 2.0, False)}, {0: 11.0}, 1, 1, "it was killed by SIGKILL"),
        # Of two, the earlier one.
        ([-9, -9], {}, {1: 9.0}, 0, 1, "it was killed by SIGKILL"),
        # One that the launcher stopped.
        ([1, -15], {0: (VAGUE, 5.0, True)}, {1: 4.0}, 0, 0, VAGUE),
    ],
)
def test_a_process_that_nobody_of_us_killed_is_the_cause(
    codes: list[int],
    words: dict[int, tuple[str, float, bool]],
    ends: dict[int, float],
    first: int,
    cause: int,
    says: str,
) -> None:
    found = children(*codes)
    for number, moment in ends.items():
        found[number].ended_at = moment
    child, text = find_cause(found[first], 10.0, found, lambda n: words.get(n, ("", 0.0, False)))
    assert child.task.number == cause
    assert says in text


def test_a_process_that_the_launcher_killed_at_the_end_was_not_killed_before() -> None:
    """It stood still, the others lost it, and SIGTERM did not end it."""
    found = children(1, -9)
    found[1].told = {signal.SIGTERM, signal.SIGKILL}
    words = {0: (LOST.format(1), 6.0, True)}
    child, text = find_cause(found[0], 10.0, found, lambda n: words.get(n, ("", 0.0, False)))
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
    words = {0: (error, 9.0, True)}
    child, _ = find_cause(found[0], 10.0, found, lambda n: words.get(n, ("", 0.0, False)))
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


# Who has joined.


def test_those_who_have_joined_are_heard() -> None:
    job = f"run-test-{time.time_ns()}"
    tell(job, 1)  # nobody listens
    box = Joined(job)
    second = Joined(job)
    assert second.socket is None
    tell(job, 3)
    tell("somebody else's", 4)
    assert box.ranks() == [3]
    assert box.ranks() == []
    assert second.ranks() == []
    box.close()
    tell(job, 1)


JOIN = "import herring, os; RANK = int(os.environ['RANK']); "


def test_a_job_that_nobody_joined_says_so() -> None:
    done = run("-n", "2", "--", "true")
    assert done.returncode == 0
    assert "none of the 2 workers has called herring.init()" in done.stderr
    done = run("-n", "2", "--horovod", "--", "true")
    assert "none of the 2 workers has called hvd.init()" in done.stderr
    # One worker has nobody to average with, and a failure says enough.
    assert run("-n", "1", "--", "true").stderr == ""
    assert "herring.init()" not in run("-n", "2", "--", "false").stderr


def test_a_job_that_all_have_joined_says_nothing() -> None:
    pytest.importorskip("herring._core")
    # A process on the way makes no difference.
    code = "import herring; herring.init(); herring.barrier()"
    command = f"{sys.executable} -c '{code}'; true"
    done = run("-n", "2", "--require-init", "--", "bash", "-c", command)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_the_option_it_is_a_failure_at_once() -> None:
    pytest.importorskip("herring._core")
    done = run("-n", "2", "--require-init", *python(JOIN + "RANK == 0 and herring.init()"))
    assert done.returncode == 3
    assert "rank 1" in done.stderr
    assert "without having called herring.init() (--require-init)" in done.stderr
    assert run("-n", "1", "--require-init", "--", "true").returncode == 3
