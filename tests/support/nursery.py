"""A warm process: it has imported what jobs need, and forks processes that run Python programs.

Usage: python nursery.py DESCRIPTOR [MODULE ...]

The process imports the modules and answers requests of `warm` that come over the socket with this
descriptor. A forked process behaves like a new interpreter with the same command line: it has the
environment, the folder, the descriptors and the signals that the request asks for, its program is
`__main__`, and it ends as an interpreter does. It differs in four ways: modules are imported
already and are not taken apart at the end, the hash seed is the nursery's, and /proc shows the
nursery's command line and environment.

The nursery has one thread and never joins a job, so that nothing is forked in the middle of work.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import warm
from herring.launch import guard

# Requests are small, but for environments and short scripts.
LARGEST_REQUEST = 1 << 20
# Modules that start processes, for which they get a nursery of their own.
LAUNCHERS = ("herring.command.cli", "torch.distributed.run")
MOST_DESCRIPTORS = 64
_PR_SET_NAME = 15
_MADV_COLLAPSE = 25
_HUGE = 2 << 20  # bytes
_libc = ctypes.CDLL(None)
_interpreter = ctypes.PyDLL(None)  # whose calls keep the interpreter's lock


def serve(requests: socket.socket) -> None:
    """Forks a process for each request, until the other side of the socket is closed.

    Returns only in forked processes, which are to call `become` then.
    """
    while True:
        try:
            data, packed, _, _ = requests.recvmsg(
                LARGEST_REQUEST, socket.CMSG_SPACE(4 * MOST_DESCRIPTORS)
            )
        except ConnectionResetError:
            data = b""
        if not data:
            os._exit(0)
        given = array.array("i")
        for _, _, content in packed:
            given.frombytes(content)
        request = json.loads(data)
        read, write = os.pipe()
        watcher = os.fork()
        if watcher == 0:
            os.close(read)
            requests.close()
            _fork_again(request, given, write)
            return
        os.close(write)
        for descriptor in given:
            os.close(descriptor)
        number = os.read(read, 16)
        os.close(read)
        if request["adopt"]:
            os.waitpid(watcher, 0)  # it has ended, or is about to
        else:
            _reap()
        requests.send(number)


def _reap() -> None:
    """Collects watchers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_again(request: dict[str, Any], given: array.array[int], write: int) -> None:
    """Forks the process of a request, and returns in that process alone.

    With `adopt`, the process between ends at once, so that the requester becomes the parent: it has
    asked the kernel for orphans. Otherwise it waits for the end of the process, and writes its
    status to the last of the given descriptors.
    """
    between = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(write)
        if request["adopt"]:
            while os.getppid() == between:
                time.sleep(0.0002)
            if os.getppid() != request["adopt"]:
                os._exit(1)  # the requester has died
            _prepare(request, given)
        else:
            _prepare(request, given[:-1])
        return
    os.write(write, str(child).encode())
    os.close(write)
    if request["adopt"]:
        os._exit(0)
    status_to = given[-1]
    os.dup2(status_to, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(0, str(status).encode())
    os._exit(0)


def _prepare(request: dict[str, Any], given: array.array[int]) -> None:
    """Gives this process the descriptors, signals, folder and environment of a request."""
    numbers = [0, 1, 2, *request["keep"]]
    # First to places above all wanted ones, so that none is overwritten before it is copied.
    above = max(numbers) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in given]
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
    kept = sorted(numbers)
    for low, next_ in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, next_)
    if request["session"]:
        os.setsid()
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    faulthandler.register(warm.STACKS)
    if request["guarded"]:
        guard.child_setup(request["adopt"])
    os.chdir(request["folder"])
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = filter(None, paths.removesuffix(before).split(os.pathsep))
    if any(os.path.exists(f"{path}/sitecustomize.py") for path in paths.split(os.pathsep)):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")  # as an interpreter does when it starts
    sys.orig_argv = request["command"]


def become() -> NoReturn:
    """Runs the program of this process's command line, and ends as the interpreter would."""
    _open_streams()
    if "numpy" in sys.modules:  # Python's own random numbers have a new seed since the fork
        sys.modules["numpy"].random.seed()
    words = [word for word in sys.orig_argv[1:] if word != "-u"]
    if words[0] == "-c":
        _set_main("-c", words[2:], "")
        _run(lambda: exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"])))
    elif words[0] == "-m":
        _set_main("-m", words[2:], os.getcwd())
        if words[1] in LAUNCHERS:
            warm.start_from(fork_nursery())
        _run(lambda: runpy._run_module_as_main(words[1]))  # type: ignore[attr-defined]
    else:
        main = _set_main(words[0], words[1:], os.path.dirname(os.path.realpath(words[0])))
        main.__file__ = path = os.path.abspath(words[0])
        with io.open_code(path) as file:
            text = file.read()
        _run(lambda: exec(compile(text, path, "exec"), vars(main)))
    sys.exit()


def fork_nursery() -> socket.socket:
    """Forks a nursery for the processes that this one starts, before it has changed anything."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        faulthandler.unregister(warm.STACKS)
        serve(theirs)
        become()
    theirs.close()
    return ours


def _set_main(name: str, arguments: list[str], folder: str) -> types.ModuleType:
    """Makes a new `__main__`; `ps` shows the first argument, as "server", or the program's name."""
    shown = arguments[0] if name == "-c" and arguments else os.path.basename(name)
    _libc.prctl(_PR_SET_NAME, shown.encode()[:15], 0, 0, 0)
    sys.argv, sys.path[:0] = [name, *arguments], [folder]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __spec__=None)
    sys.modules["nursery"] = sys.modules["__main__"]  # otherwise the code that runs would be freed
    sys.modules["__main__"] = main
    return main


def _run(program: Callable[[], object]) -> None:
    """Runs the program; reports an exception without the frames of this module."""
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _exit(end.code or 0)
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.with_traceback(trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.last_exc = error  # type: ignore[attr-defined]  # since Python 3.12
        sys.excepthook(type(error), error, trace)
        _exit(1, interrupted=isinstance(error, KeyboardInterrupt))
    _exit(0)


def _exit(status: int, interrupted: bool = False) -> None:
    """Ends this process like an interpreter, which ends by SIGINT after a KeyboardInterrupt.

    An interpreter also takes all modules apart. That needs more processor time than a small job,
    so it is left out here, unless TAKE_APART is in the environment. The objects of the program
    itself are destroyed, and then the process ends by exit(), with the destructors of libraries.
    Those of torch take too long.
    """
    torch = "torch" in sys.modules
    if "TAKE_APART" in os.environ and not torch and not interrupted:
        sys.exit(status)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # Other threads may still use the program's names.
    if not torch and not interrupted and threading.active_count() == 1:
        vars(sys.modules["__main__"]).clear()
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if torch:
        os._exit(status)
    _interpreter.exit(status)


def _open_streams() -> None:
    """Makes new standard streams: what the nursery's have buffered, if anything, stays there."""
    direct = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "w" if number else "r"
        file: Any = io.FileIO(number, mode, closefd=False)
        file.name = f"<{name}>"
        tty = file.isatty()
        if not number:
            file = io.BufferedReader(file)
        elif not direct:
            file = io.BufferedWriter(file)
        stream = io.TextIOWrapper(
            file,
            encoding=getattr(sys, name).encoding,
            errors=getattr(sys, name).errors,
            line_buffering=tty or name == "stderr",
            write_through=direct and bool(number),
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def use_huge_pages() -> None:
    """Moves this process's memory to huge pages, where the kernel can (Linux 6.1 and newer).

    Then a fork has few page tables to copy, which is most of what it costs with torch.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, inode, *name = line.split()
        if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in place.split("-"))
        for at in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)


def main() -> None:
    """Serves requests; in forked processes, runs their programs."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of this file
    for module in sys.argv[2:]:
        importlib.import_module(module)
    for module in LAUNCHERS:
        sys.modules.pop(module, None)  # runpy warns of a program that is imported already
    gc.collect()
    gc.freeze()  # nothing that was imported is looked at again, and copied, in forked processes
    if "torch" in sys.modules:
        use_huge_pages()
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        sys.exit(f"{sys.argv[2:]} have started {len(threads) - 1} threads: forks are not safe")
    requests.send(b"warm")
    serve(requests)


if __name__ == "__main__":
    main()
    become()
