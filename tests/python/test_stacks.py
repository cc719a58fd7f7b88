"""The core asks where the Python program is, and a thread of the interpreter answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from test_logs import ALONE, LIMIT, run

pytest.importorskip("herring._core")

# Calls a function and prints what the core learns meanwhile.
WATCH = """
import os, sys, threading, time
import herring
from herring import _core
herring.init()

def latest():
    while True:  # until an answer to this request is there
        text, cause, age, waits = _core.latest_stack()
        if waits is None and text:
            return f"{text}|{cause}"
        time.sleep(0.01)

def watch():
    while not inside.is_set():
        time.sleep(0.01)
    _core.ask_stack()
    print(latest())
    done.set()

def during(function):
    watcher = threading.Thread(target=watch)
    inside.clear()
    done.clear()
    watcher.start()
    function()
    watcher.join()

def pause():
    inside.set()
    while not done.is_set():
        time.sleep(0.01)

inside, done = threading.Event(), threading.Event()
"""


def watched(folder: Path, code: str) -> list[str]:
    """Runs a program that watches itself; returns what it learned."""
    script = folder / "train.py"
    script.write_text(WATCH + code)
    done = run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_the_main_thread_is_found(tmp_path: Path) -> None:
    code = "def load_batch():\n    pause()\nduring(load_batch)\n"
    (line,) = watched(tmp_path, code)
    assert re.fullmatch(r"train\.py:\d+ in pause\|compute", line), line


def test_what_torch_does_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import torch, torch.utils.data

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        pause()
        return index

class Slow:
    def __reduce__(self):
        pause()
        return int, ()

def doubled(x):
    pause()
    return x + x

during(lambda: next(iter(torch.utils.data.DataLoader(Items()))))
during(lambda: torch.save(Slow(), os.devnull))
during(lambda: torch.jit.trace(doubled, torch.ones(3), check_trace=False))
"""
    lines = watched(tmp_path, code)
    assert [line.partition("|")[2] for line in lines] == ["input", "checkpoint", "compile"]
    assert all(re.match(r"train\.py:\d+ in pause", line) for line in lines), lines


def test_a_loader_in_another_process_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import torch.utils.data

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        os.read(ready, 1)  # a worker of the loader has this pipe of its parent
        return index

ready, go = os.pipe()
def load():
    loader = iter(torch.utils.data.DataLoader(Items(), num_workers=1))
    inside.set()
    next(loader)

# The loop in latest() ends when the main thread waits for the loader.
def latest():
    while True:
        text, cause, age, waits = _core.latest_stack()
        if waits is None and "torch/utils/data" in text:
            os.write(go, b"x")
            return f"{text}|{cause}"
        _core.ask_stack()
        time.sleep(0.01)
during(load)
"""
    (line,) = watched(tmp_path, code)
    assert re.fullmatch(r"train\.py:\d+ in load, inside torch/utils/data/\S+ \w+\|input", line)


def test_a_thread_that_calls_herring_counts(tmp_path: Path) -> None:
    code = """
def train():
    herring.barrier()
    pause()

def wait():
    trainer = threading.Thread(target=train, name="trainer")
    trainer.start()
    trainer.join()
during(wait)
during(pause)
"""
    other, main = watched(tmp_path, code)
    assert re.fullmatch(r"train\.py:\d+ in pause \(thread trainer\)\|compute", other), other
    assert re.fullmatch(r"train\.py:\d+ in pause\|compute", main), main


@pytest.mark.parametrize(
    ("handler", "token"), [("", 1), ("signal.signal(signal.SIGUSR1, lambda *_: None)", 0)]
)
def test_what_a_signal_may_wake_does_not_stand_still(handler: str, token: int) -> None:
    code = f"""
import signal, threading
from herring.process import stacks
{handler}
woken, found = threading.Event(), []
def look():
    main = threading.main_thread().ident
    while not stacks._waits_for_a_thread(sys._current_frames()[main]):
        time.sleep(0.001)
    found.append(stacks._held_token())
    woken.set()
threading.Thread(target=look).start()
woken.wait()
print(*found)
"""
    done = warm.run(
        [sys.executable, "-c", "import sys, time" + code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(token)]


def test_a_call_in_c_is_found_in_its_line(tmp_path: Path) -> None:
    code = """
from pickle import load
def stores():
    os.fsync(3)
def reads():
    return load(file=None)
def sleeps():
    time.sleep(1000)
from herring.process import stacks
def line_of(function, which):
    code = function.__code__
    first = code.co_firstlineno + which
    ends = [end for _, end, line in code.co_lines() if line == first]
    print(stacks._call_of(code, max(ends), first, globals()) or "nothing")
for function in stores, reads, sleeps:
    line_of(function, 1)
"""
    assert watched(tmp_path, code) == ["os.fsync", "_pickle.load", "nothing"]


def test_an_interpreter_whose_lock_is_held_does_not_answer(tmp_path: Path) -> None:
    code = """
import ctypes
sys.setswitchinterval(30)  # the thread that answers must not get the lock before the call
_core.ask_stack()
ctypes.PyDLL(None).usleep(300_000)
text, cause, age, waits = _core.latest_stack()
print(text)
assert waits > 0.2
sys.setswitchinterval(0.005)
latest()  # the answer to this request, which must not be taken for one to the next
during(pause)
"""
    held, then = watched(tmp_path, code)
    assert held == "its Python does not answer: a call holds the interpreter's lock"
    assert then.endswith("in pause|compute")


def test_variables_do_not_outlive_their_function(tmp_path: Path) -> None:
    code = """
import gc, weakref
gc.disable()
class Large:
    pass
def step():
    large = Large()
    kept.append(weakref.ref(large))
    pause()
kept = []
during(step)
while kept[0]() is not None:  # the thread that answers may still be at work
    time.sleep(0.01)
"""
    assert len(watched(tmp_path, code)) == 1


def test_variables_do_not_live_until_a_stack_is_described(tmp_path: Path) -> None:
    code = """
import gc, weakref
from herring.process import stacks
gc.disable()
describe, describes, left = stacks.describe, threading.Event(), threading.Event()
def slow(places):
    describes.set()
    left.wait()
    return describe(places)
stacks.describe = slow
class Large:
    pass
def step():
    large = Large()
    kept.append(weakref.ref(large))
    _core.ask_stack()
    describes.wait()
kept = []
step()
freed = kept[0]() is None
left.set()
print(freed)
"""
    assert watched(tmp_path, code) == ["True"]


@pytest.mark.parametrize("how", ["sys.exit(0)", "os._exit(0)", "herring.shutdown()"])
def test_a_forked_child_ends_and_learns_nothing(how: str) -> None:
    code = f"""
import os, sys, threading, warnings
import herring
from herring import _core
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
herring.init()
def ask():
    while not stop.wait(0.0001):
        _core.ask_stack()
stop = threading.Event()
threading.Thread(target=ask, daemon=True).start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        _core.ask_stack()
        assert _core.latest_stack() == ("", "", None, None)
        {how}
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
"""
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_while_threads_ask() -> None:
    code = """
import threading
import herring
from herring import _core
herring.init()
def ask():
    while True:
        _core.ask_stack()
for _ in range(3):
    threading.Thread(target=ask, daemon=True).start()
"""
    for _ in range(5):
        done = run(code)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_there_is_an_answer_in_the_next_job_too() -> None:
    code = """
import time
import herring
from herring import _core
for _ in range(2):
    herring.init()
    _core.ask_stack()
    while not (_core.latest_stack()[0] and _core.latest_stack()[3] is None):
        time.sleep(0.01)
    herring.shutdown()
print(_core.latest_stack()[0])
"""
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<string>:")


def test_an_interpreter_in_an_interpreter_ends() -> None:
    # Interpreters with a lock of their own refuse the core; those with a common lock may take it.
    code = """
import sys
try:
    import _interpreters
except ImportError:
    try:
        import _xxsubinterpreters as _interpreters
    except ImportError:
        sys.exit()
import herring
herring.init()
one = _interpreters.create()
try:
    _interpreters.run_string(one, "from herring import stacks; stacks.start()")
except Exception:
    pass
_interpreters.destroy(one)
"""
    done = warm.run(
        [sys.executable, "-c", code],
        env={**os.environ, **ALONE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
