"""The core's log lines go to Python's `logging`, or to stderr if it has no handler."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import warm

pytest.importorskip("herring._core")
HERRING = (sys.executable, "-m", "herring.command.cli")
LIMIT = 600
ALONE = {"HERRING_RANK": "0", "HERRING_SIZE": "1"}
LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[herring( rank \d+| server( \d+)?)?\] \w+: .+"
JOB = "import herring\nherring.init()\nherring.shutdown()\n"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_LOG")}
    return warm.run(
        [sys.executable, "-c", code],
        env={**environ, **ALONE, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_without_a_handler_lines_are_on_stderr_with_time_process_and_level() -> None:
    done = run(JOB, HERRING_LOG_LEVEL="info")
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert all(re.fullmatch(LINE, line) for line in lines), done.stderr
    text = "\n".join(lines)
    for words in ("info: rank 0 (127.0.0.1, pid ", "info: the job begins: 1 worker on 1 node,"):
        assert words in text
    for words in ("joined as rank 0 of 1", "transport: TCP", "node stage: ", "leaves the job"):
        assert f"[herring rank 0] info: {words}" in text or words in text, text


def test_a_job_is_silent_by_default() -> None:
    done = run(JOB)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_end_of_a_job_is_logged_although_the_process_ends_abruptly() -> None:
    done = run(f"{JOB}import os\nos._exit(0)\n", HERRING_LOG_LEVEL="info")
    assert "leaves the job" in done.stderr


CONFIGURED = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(levelname)s|%(name)s|%(message)s"{level})
"""


@pytest.mark.parametrize(
    ("level", "variable"),
    [(", level=logging.INFO", ""), ("", "info")],
    ids=["by the program", "by the environment"],
)
def test_a_handler_of_the_program_gets_the_lines(level: str, variable: str) -> None:
    done = run(CONFIGURED.format(level=level) + JOB, HERRING_LOG_LEVEL=variable)
    assert (done.returncode, done.stderr) == (0, "")
    assert "INFO|herring|rank 0: joined as rank 0 of 1" in done.stdout
    assert "INFO|herring|rank 0: leaves the job after" in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "logging.getLogger('herring').addHandler(logging.NullHandler())",
        "logging.getLogger('herring').setLevel(logging.CRITICAL)",
        "logging.getLogger('herring').setLevel(logging.ERROR); logging.basicConfig()",
    ],
)
def test_a_program_can_silence_herring(code: str) -> None:
    done = run(f"import logging\n{code}\n{JOB}", HERRING_LOG_LEVEL="info")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_records_have_the_time_at_which_the_core_spoke() -> None:
    code = """
import logging, threading, time
import herring
from herring import _core
records, go, both = [], threading.Event(), threading.Event()
class Keep(logging.Handler):
    def emit(self, record):
        go.wait()
        records.append(record)
        if len(records) == 2:
            both.set()
logging.getLogger("herring").addHandler(Keep())
herring.init()
before = time.time()
_core.log_warning("one")
_core.log_warning("two")
after = time.time()
time.sleep(0.05)  # The second record is made later than it was spoken.
go.set()
both.wait()
assert [r.getMessage() for r in records] == ["rank 0: one", "rank 0: two"]
assert all(before - 0.01 <= r.created <= after + 0.01 for r in records)
assert records[0].levelno == logging.WARNING
"""
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_failing_filter_was_given_is_not_lost() -> None:
    code = """
import logging
def fail(record):
    raise ValueError("of the filter")
logging.basicConfig()
logging.getLogger("herring").addFilter(fail)
import herring
from herring import _core
herring.init()
_core.log_warning("still there")
"""
    done = run(code)
    assert done.returncode == 0
    assert re.fullmatch(LINE.replace(".+", "still there"), done.stderr.strip()), done.stderr


def test_a_handler_that_never_returns_delays_the_end_by_seconds_only() -> None:
    code = """
import logging, threading
taken = threading.Event()
class Block(logging.Handler):
    def createLock(self):
        self.lock = None
    def emit(self, record):
        taken.set()
        threading.Event().wait()
logging.getLogger("herring").addHandler(Block())
import herring
from herring import _core
herring.init()
_core.log_warning("taken by the handler")
taken.wait()
_core.log_warning("left at the end")
"""
    done = run(code)
    assert done.returncode == 0
    assert "left at the end" in done.stderr


def test_the_interpreter_ends_while_threads_log() -> None:
    code = """
import os, threading
import herring
from herring import _core
herring.init()
def speak():
    while True:
        _core.log_warning("on and on")
for _ in range(3):
    threading.Thread(target=speak, daemon=True).start()
"""
    for _ in range(5):
        done = run(code)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("how", ["sys.exit(0)", "os._exit(0)", "herring.init(); sys.exit(0)"])
def test_a_forked_child_logs_and_ends(how: str) -> None:
    code = f"""
import os, sys, threading
import herring
from herring import _core
herring.init()
def speak():
    while not stop.wait(0.0001):
        _core.log_info("from the parent")
stop = threading.Event()
threading.Thread(target=speak, daemon=True).start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        _core.log_warning("from the child")
        {how}
    assert os.waitpid(child, 0)[1] == 0
stop.set()
"""
    done = run(code, HERRING_LOG_LEVEL="warning", HERRING_JOB="forked-log")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("from the child") == 10


def test_servers_and_ranks_of_a_job_tell_what_a_user_wants_to_know() -> None:
    options = ["-n", "2", "--nodes", "2", "--servers", "1", "--timeout", "50"]
    code = """
import herring
herring.init()
herring.PlannedReduction([(100_000, "float32")], name="model", wire_dtype="bfloat16").close()
herring.shutdown()
"""
    done = warm.run(
        [*HERRING, "run", *options, "--", sys.executable, "-c", code],
        env={**os.environ, "HERRING_LOG_LEVEL": "info"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    said = done.stderr
    assert done.returncode == 0, said
    assert all(re.fullmatch(r"\[[\w ]+\] " + LINE, line) for line in said.splitlines()), said
    for words in (
        r"\[herring server\] info: waits for its job at ",
        r"\[herring server 0\] info: serves 2 workers on 2 nodes at ",
        r"\[herring server 0\] info: the job has ended",
        r"\[herring rank 0\] info: rank 1 \([\w.:]+, pid \d+\) joined",
        r"\[herring rank 0\] info: a dedicated server \([\w.:]+, pid \d+\) joined",
        r"info: the job begins: 2 workers on 2 nodes, 1 dedicated server;",
        r"\[herring rank 1\] info: joined as rank 1 of 2, .*; servers: 1 dedicated, 2 colocated; ",
        r"\[herring rank 1\] info: 'model': 1 gradient, 0.4 MB .* float32 travels as bfloat16",
        r"\[herring rank 0\] info: rank 1 \([\w.:]+, pid \d+\) left the job",
    ):
        assert re.search(words, said), (words, said)
