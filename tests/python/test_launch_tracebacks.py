"""Whole tracebacks in the output of `herring run`, and the last words of a rank."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from herring.launch.tracebacks import Tracebacks
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
# Python writes the indentation of a statement, and each part of an exception, in pieces.
IN_INDENTATION = TRACEBACK.replace(b"    1/0\n", b"    " + 2 * LOG_LINE + b"1/0\n")
IN_EXCEPTION = TRACEBACK.replace(b"ZeroDivisionError", b"ZeroDivisionError" + LOG_LINE)
FATAL = (
    b"Fatal Python error: Segmentation fault\n\n"
    b"Current thread 0x00007f5d (most recent call first):\n"
    b'  File "<string>", line 1 in <module>\n'
)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


@pytest.mark.parametrize("size", [1, 7, 10000])
@pytest.mark.parametrize(
    ("block", "error"),
    [
        (TRACEBACK, "ZeroDivisionError: division by zero"),
        (CHAINED, "ZeroDivisionError: division by zero"),
        (OF_TORCH, "ZeroDivisionError: division by zero"),
        (FATAL, "Fatal Python error: Segmentation fault"),
        (GROUP, "ExceptionGroup: two (2 sub-exceptions): ValueError: 1"),
        (CARETS, "ValueError: vmap got inconsistent sizes"),
        (WITH_LOG_LINES, "ZeroDivisionError: division by zero"),
        (IN_INDENTATION, "ZeroDivisionError: division by zero"),
        (IN_EXCEPTION, "ZeroDivisionError: division by zero"),
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
    words = found.last_words()
    assert (words.error, words.ends_with_error, found.due) == (error, True, None)
    assert found.feed(b"more\n") == b"more\n"
    words = found.last_words()
    assert (words.error, words.ends_with_error, words.line) == (error, False, "more")


FLIGHT = b"2026-01-31 13:05:59.123 [herring rank 3] warning: what all ranks did last is in x\n"
WAITS = b"2026-01-31 13:05:50.001 [herring rank 1] warning: 'x' has waited 5 s for rank 0\n"
UNUSED = (
    b"[rank1]:[W131 13:05:59.123456789 reducer.cpp:1457] Warning: find_unused_parameters=True was "
    b"specified in DDP constructor (function operator())\n"
).replace(b"W131", b"W0131")
OF_PYTHON = (
    b"/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
    b"There appear to be 1 leaked semaphore objects\n  warnings.warn('resource_tracker: %d')\n"
)
OF_TENSORFLOW = b"2026-01-31 13:05:59.123456: W tensorflow/core/kernels/x.cc:12] no more data\n"
OF_LOGGING = b"2026-01-31 13:05:59,123 - train - WARNING - lr is 0\nINFO:root:saved\n"
BAR = b"100%|##########| 10/10 [00:01<00:00,  9.90it/s]\r\n"
CHATTER = FLIGHT + UNUSED + OF_PYTHON + OF_TENSORFLOW + OF_LOGGING + BAR + WAITS
WATCHDOG = b"[rank1]:[E131 13:05:59.123 ProcessGroup.cpp:1] Watchdog saw an error\n".replace(
    b"E131", b"E0131"
)


def other(what: bytes) -> bytes:
    return what + TRACEBACK.replace(b"ZeroDivisionError: division by zero", b"KeyError: 'other'")


IGNORED = other(b"Exception ignored in: <function X.__del__ at 0x7f>\n")
AT_EXIT = other(b"Error in atexit._run_exitfuncs:\n")
IN_LOGGING = other(b"--- Logging error ---\n")
IN_THREAD = other(b"Exception in thread Thread-1 (feed):\n")
IN_CHILD = other(b"Process SpawnProcess-1:\n")
NATIVE = (
    b"terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad block\n"
)
NESTED = (
    b"  + Exception Group Traceback (most recent call last):\n"
    b'  |   File "x.py", line 1, in <module>\n'
    b"  | ExceptionGroup: two (2 sub-exceptions)\n"
    b"  +-+---------------- 1 ----------------\n"
    b"    | Traceback (most recent call last):\n"
    b'    |   File "x.py", line 2, in f\n'
    b"    | ValueError: 1\n"
    b"    +---------------- 2 ----------------\n"
    b"    | KeyError: 2\n"
    b"    +------------------------------------\n"
)
BEFORE = (
    b"Traceback (most recent call last):\n"
    b'  File "x.py", line 9, in <module>\n'
    b"OSError: no file\n"
    b"\nThe above exception was the direct cause of the following exception:\n\n"
)


@pytest.mark.parametrize("size", [7, 10000])
@pytest.mark.parametrize(
    ("text", "error", "at_end", "line"),
    [
        (CHATTER + TRACEBACK, "ZeroDivisionError: division by zero", True, ""),
        (TRACEBACK + CHATTER, "ZeroDivisionError: division by zero", True, ""),
        (TRACEBACK + WATCHDOG, "ZeroDivisionError: division by zero", True, ...),
        (TRACEBACK + IGNORED, "ZeroDivisionError: division by zero", True, ""),
        (TRACEBACK + AT_EXIT, "ZeroDivisionError: division by zero", True, ""),
        (TRACEBACK + CHATTER + IGNORED, "ZeroDivisionError: division by zero", True, ""),
        (TRACEBACK + IN_THREAD, "ZeroDivisionError: division by zero", True, ""),
        (IN_CHILD + TRACEBACK, "ZeroDivisionError: division by zero", True, ""),
        # A thread's exception counts if there is no other.
        (IN_THREAD, "KeyError: 'other'", True, ""),
        (IGNORED + AT_EXIT + IN_LOGGING, "", False, ""),
        (CHATTER, "", False, ""),
        # The program says it itself: sys.exit("no data").
        (b"no data\n" + CHATTER, "", False, "no data"),
        (CHATTER + b"no data", "", False, "no data"),
        (FLIGHT.replace(b"warning", b"error"), "", False, "what all ranks did last is in x"),
        (NATIVE + b"frame #0: f\nframe #1: g\n", "", False, "{native}"),
        (NATIVE + FATAL, "Fatal Python error: Segmentation fault: {native}", True, "{native}"),
        (
            b"x: a.c:1: f: Assertion `n' failed.\nbye\n",
            "",
            False,
            "x: a.c:1: f: Assertion `n' failed.",
        ),
        (NESTED, "ExceptionGroup: two (2 sub-exceptions): ValueError: 1", True, ""),
        (BEFORE + NESTED, "ExceptionGroup: two (2 sub-exceptions): ValueError: 1", True, ""),
    ],
)
def test_the_last_words_are_those_that_say_why(
    text: bytes, error: str, at_end: bool, line: str, size: int
) -> None:
    found = Tracebacks()
    for start in range(0, len(text), size):
        found.feed(text[start : start + size])
    found.release()
    words = found.last_words()
    native = "terminate called after throwing an instance of 'std::runtime_error': bad block"
    assert (words.error, words.ends_with_error) == (error.format(native=native), at_end)
    assert line is ... or words.line == line.format(native=native)


def test_all_exceptions_of_a_chain_and_of_a_group_are_known() -> None:
    found = Tracebacks()
    found.feed(BEFORE + NESTED)
    found.release()
    group = "ExceptionGroup: two (2 sub-exceptions)"
    known = {"OSError: no file", group, "ValueError: 1", "KeyError: 2"}
    assert known <= {*found.last_words().errors}


def test_nothing_else_is_held() -> None:
    found = Tracebacks()
    for data in (b"a\nb", b"c", b"say: Traceback (most recent call last):\n", b"  x\n", b"\x1b["):
        assert found.feed(data) == data
    assert found.due is None
    assert found.last_words().error == ""


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
    # A rank that gets no processor for seconds would lose its turn.
    launcher = (
        "from herring.command import cli\nfrom herring.launch import tracebacks\n"
        "tracebacks._STALLED_SECONDS = tracebacks._LONGEST_SECONDS = 600\n"
        "raise SystemExit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", launcher, "run", "-n", "3", "--keep-going", *python(code)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
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
