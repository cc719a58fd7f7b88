"""Where the program is: a daemon thread answers when the core asks.

The core asks when this rank is late or waits for long, and it never waits for the answer. If the
interpreter's lock is held, the answer does not come, and the core says that instead. Between
requests the thread sleeps in the core, without the lock.
"""

from __future__ import annotations

import builtins
import dis
import signal
import sys
import threading
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from herring import _core
from herring.process.answering import Answering
from herring.process.kernel_waits import still_threads
from herring.process.program import Activity, Place, cause_of_call, describe

_PATIENCE = 1.0  # seconds for which the end of the process waits for this thread
_DEEPEST = 400  # places of a stack that are looked at
_NAMES = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_MOST = 2**63 - 1  # of a token by the stacks of Python; those by the kernel are larger


def start() -> None:
    """Begins to answer the core's requests, if that has not begun already."""
    if _can_look():
        _answering.start()


def _can_look() -> bool:
    """Returns whether it is safe to look at the stacks of other threads.

    Without the interpreter's lock a function may return while its frame is looked at.
    """
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())


def _run() -> None:
    while (caller := _core.wait_for_stack_request()) is not None:
        try:
            found = activity(caller)
        except Exception:  # nothing that a program has on its stack may end this thread
            found = Activity()
        try:
            held = _held_token()
        except Exception:
            held = 0
        _core.answer_stack(found.text, found.cause, held)


def activity(caller: int = 0) -> Activity:
    """Returns what the program does: its main thread, or the one that last called Herring.

    The second one counts unless it waits while the main thread does not.

    Args:
      caller: The native identifier of the thread that last called Herring; 0 if none has.
    """
    main = threading.main_thread()
    callers = [thread for thread in threading.enumerate() if thread.native_id == caller]
    threads = {thread.ident: thread for thread in (*callers, main)}
    stacks = {
        ident: _stack_of(frame)
        for ident, frame in sys._current_frames().items()
        if ident in threads
    }
    found = {ident: describe(_places_of(stack)) for ident, stack in stacks.items()}
    if not found:
        return Activity()
    order = [ident for ident in threads if ident in found]
    chosen = next((ident for ident in order if not found[ident].waits), order[0])
    what = found[chosen]
    if threads[chosen] is main:
        return what
    name = "".join(c if c.isprintable() else "?" for c in threads[chosen].name[:40])
    return Activity(f"{what.text} (thread {name})", what.cause, what.waits)


# Libraries whose native threads may run code in Python at any time. It may call Herring.
_WITH_THREADS = frozenset({"cupy", "jax", "jaxlib", "mxnet", "numba.cuda", "tensorflow"})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_TIMED = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
# Threads of libraries that only watch the others: tqdm's draws bars again that stand.
_WATCHERS = frozenset({"tqdm._monitor"})


class _Threads(NamedTuple):
    """The threads of this process, when the core asked for them."""

    changes: int  # how often a wait for a result has begun or ended
    waiting: frozenset[int]  # the identifiers of those that wait for a result
    callers: list[tuple[int, int]]  # identifier and native one of those that have called Herring
    known: dict[int, threading.Thread]  # by identifier, without those that Python has not started
    running: dict[int, bool]  # without this thread; whether it waits for what another has to do

    def may_end(self, ident: int) -> bool:
        """Returns whether a thread is neither one that waits for a result nor one that watches."""
        watches = type(self.known.get(ident)).__module__ in _WATCHERS
        return not (ident in self.waiting or watches)


def _held_token() -> int:
    """Returns a number that is not 0 if no thread can go on before a result comes.

    Every other thread then waits for a result without a limit of its own, or for such a thread. The
    number changes once any of them has gone on. Whatever is not certain gives 0.
    """
    if _has_timer():
        return 0
    changes, waiting, callers = _core.waiting_threads()
    known = {
        thread.ident: thread
        for thread in threading.enumerate()
        if thread.ident is not None and not isinstance(thread, threading._DummyThread)
    }
    running = {
        ident: _waits_for_a_thread(frame)
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
    if not known.keys() - {threading.get_ident()} <= running.keys():
        return 0  # a thread is about to begin
    main = threading.main_thread().ident
    threads = _Threads(changes, frozenset(waiting), callers, known, running)
    if main in running and threads.may_end(main) and _handles_signals():
        return 0  # programs wait like this until they are told to end
    return _held_in_python(threads) or _held_in_kernel(threads)


def _held_in_python(threads: _Threads) -> int:
    """Returns the token if the stacks of Python's threads say enough."""
    if not _WITH_THREADS.isdisjoint(sys.modules):
        return 0
    if any(ident not in threads.known and _may_call(native) for ident, native in threads.callers):
        return 0
    for ident, waits in threads.running.items():
        if ident not in threads.known or (threads.may_end(ident) and not waits):
            return 0
    return threads.changes + 1


def _held_in_kernel(threads: _Threads) -> int:
    """Returns the token if the kernel says enough of all threads, also of those without Python."""
    native = dict(threads.callers)
    native.update((ident, one.native_id) for ident, one in threads.known.items() if one.native_id)
    if not threads.running.keys() <= native.keys():
        return 0
    runs_python = {native[ident] for ident in threads.running}
    others = {threading.get_native_id()}
    others.update(native[ident] for ident in threads.running if not threads.may_end(ident))
    found = still_threads(others, runs_python)
    return hash((threads.changes, found)) & _MOST | _MOST + 1 if found is not None else 0


def _has_timer() -> bool:
    """Returns whether a timer of the process may interrupt its main thread."""
    if any(signal.getitimer(each)[0] > 0 for each in _TIMERS):
        return True
    return any(callable(signal.getsignal(each)) for each in _TIMED)


def _handles_signals() -> bool:
    """Returns whether the program has a handler of its own for any signal."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(one) and one is not signal.default_int_handler for one in handlers)


def _may_call(native: int) -> bool:
    """Returns whether a thread that Python has not started may call Herring again by itself.

    Those of torch's autograd only do so while a thread of Python is in a backward pass.
    """
    try:
        name = Path(f"/proc/self/task/{native}/comm").read_text()
    except OSError:
        return False  # it has ended
    return not name.startswith("pt_autograd")


def _waits_for_a_thread(frame: FrameType) -> bool:
    """Returns whether this thread waits without a limit for what another has yet to do."""
    code = frame.f_code
    if code is threading.Condition.wait.__code__:  # inside queues and events, too
        mine = frame.f_locals
        lock = mine.get("waiter")
        return mine.get("timeout") is None and lock is not None and lock.locked()
    # Waits for the end of a thread: until Python 3.12 in the first function, then in the second.
    inner = getattr(threading.Thread, "_wait_for_tstate_lock", None)
    if inner is not None and code is inner.__code__:
        mine = frame.f_locals
        lock = mine.get("lock")
        return mine.get("timeout") == -1 and lock is not None and lock.locked()
    if inner is None and code is threading.Thread.join.__code__:
        mine = frame.f_locals
        return mine.get("timeout") is None and mine["self"].is_alive()
    return False


class _Step(NamedTuple):
    """What a frame tells of itself. A frame that is kept keeps its function's variables alive."""

    code: CodeType
    last: int  # the offset of the instruction that runs
    names: dict[str, Any]  # the module's


def _stack_of(frame: FrameType | None) -> list[_Step]:
    """Returns a stack, the innermost function first."""
    steps: list[_Step] = []
    while frame is not None and len(steps) < _DEEPEST:
        steps.append(_Step(frame.f_code, frame.f_lasti, frame.f_globals))
        frame = frame.f_back
    return steps


def _places_of(stack: list[_Step]) -> list[Place]:
    places: list[Place] = []
    for code, last, names in stack:
        line = next((at for first, end, at in code.co_lines() if first <= last < end), None) or 0
        module = dict.get(names, "__name__", "")
        calls = "" if places else _call_of(code, last, line, names)
        places.append(Place(code.co_filename, line, code.co_name, str(module), calls))
    return places


def _call_of(code: CodeType, last: int, line: int, names: dict[str, Any]) -> str:
    """Returns the function in C that a line has got to, if its name tells a cause."""
    spans = [(first, end) for first, end, number in code.co_lines() if number == line]
    chain: list[str] = []
    found = ""
    for step in dis.get_instructions(code):
        if step.offset > last:
            break
        if not any(first <= step.offset < end for first, end in spans):
            continue
        if step.opname in _NAMES:
            chain = [str(step.argval)]
        elif step.opname in _ATTRIBUTES and chain:
            chain.append(str(step.argval))
        elif step.opname != "PUSH_NULL":
            chain = []
        if chain and cause_of_call(name := _full_name(chain, names)):
            found = name
    return found


def _full_name(chain: list[str], names: dict[str, Any]) -> str:
    """Returns "os.fsync" for what a program calls `fsync`, `os.fsync` or `o.fsync`."""
    one = dict.get(names, chain[0], None) or getattr(builtins, chain[0], None)
    if isinstance(one, ModuleType):
        return ".".join([one.__name__, *chain[1:]])
    if isinstance(one, BuiltinFunctionType) and len(chain) == 1:
        return f"{one.__module__}.{one.__name__}"
    return ""


_answering = Answering(
    "herring-stack",
    _run,
    opens=_core.open_stack_requests,
    closes=_core.close_stack_requests,
    patience=_PATIENCE,
)
