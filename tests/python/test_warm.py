"""Programs that are forked from a warm process do what they do in a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, sys.path[0] == '')",
    "status": "import sys; sys.exit(7)",
    "text-for-a-status": "import sys; sys.exit('no such rank')",
    "exception": "def f():\n    1 / 0\nf()",
    "interrupt": "raise KeyboardInterrupt",
    "end-by-a-signal": "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "environment": "import os; print(sorted(k for k in os.environ if k not in ('LC_CTYPE', '_')))",
    "c-environment": "import ctypes as c; g = c.CDLL(None).getenv; g.restype = c.c_char_p\n"
    "print(g(b'WARM_TEST'), g(b'HERRING_RANK'))",
    "folder": "import os; print(os.getcwd())",
    "input": "import sys; print(sys.stdin.read().upper())",
    "at-exit": "import atexit, threading, time\natexit.register(print, 'at exit')\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')",
    "at-exit-after-an-exception": "import atexit, sys\n"
    "atexit.register(lambda: print(sys.last_type.__name__, sys.last_value))\nraise ValueError('x')",
    "buffered": "import os; print('late', end=''); os.write(1, b'early ')",
    "streams": "import sys; print([(s.encoding, s.errors, s.line_buffering, s.isatty(), s.fileno())"
    " for s in (sys.stdout, sys.stderr)], sys.stdin.mode, sys.stdout.name)",
    "descriptors": "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])",
    "signals": "import signal; print({n.name: str(signal.getsignal(n)) for n in signal.Signals"
    " if 'RTMAX' not in n.name and signal.getsignal(n)})",
    "threads": "import os; print(len(os.listdir('/proc/self/task')))",
    "main": "import sys, pickle\nclass A: pass\n"
    "print(type(pickle.loads(pickle.dumps(A()))) is A, sys.modules['__main__'].A is A)",
    "loaded-later": "import decimal, sched; print(decimal.Decimal(1), sched.__name__)",
}


def both(
    command: list[str], **options: object
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """Runs a command in a new interpreter and in a forked process."""
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False, **options}
    return subprocess.run(command, **options), warm.run(command, **options)


def require_same(command: list[str], **options: object) -> str:
    real, forked = both(command, **options)
    expected = (real.returncode, real.stdout, real.stderr)
    assert (forked.returncode, forked.stdout, forked.stderr) == expected
    return forked.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_text_of_a_program(name: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "WARM_TEST": "seen"}
    require_same(
        [sys.executable, "-c", PROGRAMS[name], "first", "-x"],
        input="from here",
        cwd=tmp_path,
        env=environment,
    )


def test_a_file_with_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, beside\n"
        "print(__file__, sys.argv, sys.path[0], __name__, beside.x)\n"
        "def f():\n    raise ValueError('there')\n"
        "f()\n"
    )
    (tmp_path / "beside.py").write_text("x = 1\n")
    require_same([sys.executable, "-u", str(program), "--option"])
    require_same([sys.executable, "program.py"], cwd=tmp_path)


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys; print(sys.argv[1:], sys.path[0], __name__)\n")
    require_same([sys.executable, "-m", "module", "x"], cwd=tmp_path)
    require_same([sys.executable, "-m", "herring.command.cli", "config", "--no-such-option"])
    require_same([sys.executable, "-m", "herring.command.cli", "run", "-n", "1", "--", "true"])


def test_further_folders_of_modules_and_what_runs_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nprint('start', 'MINE' in os.environ)\n")
    (tmp_path / "mine.py").write_text("x = 2\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MINE": ""}
    out = require_same([sys.executable, "-c", "import mine; print(mine.x)"], env=environment)
    assert out == "start True\n2\n"


def test_descriptors_that_are_passed_on(tmp_path: Path) -> None:
    code = "import os, sys; os.write(int(sys.argv[1]), b'it'); print(os.listdir('/proc/self/fd'))"
    outputs = []
    for run in (subprocess.run, warm.run):
        read, write = os.pipe()
        command = [sys.executable, "-c", code, str(write)]
        done = run(command, pass_fds=[write], stdout=subprocess.PIPE, text=True, timeout=600)
        os.close(write)
        with open(read, "rb") as file:
            assert file.read() == b"it"
        outputs.append((done.returncode, done.stdout))
    assert outputs[0] == outputs[1]


def test_a_process_in_the_background() -> None:
    code = "import signal, sys; print('up', flush=True); signal.pause()"
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM


def test_random_numbers_differ_between_processes() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    outputs = {warm.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout for _ in "123"}
    assert len({word for text in outputs for word in text.split()}) == 6


def test_a_job_that_hangs_tells_where(capfd: pytest.CaptureFixture[str]) -> None:
    code = """
import signal, herring
def stands_here():
    print("here", flush=True)
    signal.pause()
herring.init()
stands_here()
"""
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--grace", "1", "--"]
    job = warm.Popen(
        [*command, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline() for _ in range(2)) == ["[0] here\n", "[1] here\n"]
        warm.tell_stacks(job)
    printed = capfd.readouterr().out
    for rank in (0, 1):
        assert f'[{rank}]   File "<string>", line 5 in stands_here' in printed, printed
