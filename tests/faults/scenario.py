"""The phases of a process in a job, from start to end, while one of its system calls fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import herring
from herring.launch.server import run_server

PHASES = ("start", "run", "leave", "end")


def signal_mask() -> list[str]:
    """Returns the signals that are blocked in this thread, or in a thread that it starts."""
    blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    thread = threading.Thread(
        target=lambda: blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    )
    thread.start()
    thread.join()
    return sorted(str(one) for one in blocked)


def _expect(array: Any, value: float) -> None:
    assert (np.asarray(array) == value).all(), f"wrong bits: {np.asarray(array)[:8]}, not {value}"


def ask_for_status() -> None:
    """Asks this rank's job for its status, and for a flight record, as two clients do.

    The job may lack what it needs to answer; then it ends the connection.
    """
    for command in (b"json\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"record\n"):
        for path in (Path(os.environ["XDG_RUNTIME_DIR"]) / "herring").glob("*.sock"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.settimeout(0.5)
                client.connect(str(path))
                client.sendall(command)
                while client.recv(1 << 16):
                    pass


def operations() -> None:
    """Runs one operation of each kind, small and large, and checks the results."""
    rank, size = herring.rank(), herring.size()
    if rank == 0:
        herring.start_timeline(Path(os.environ["TMPDIR"]) / "timeline.json")
    total = size * (size - 1) / 2
    for count in (5, 300_000):
        _expect(herring.allreduce(np.full(count, rank, np.float32), "sum"), total)
    _expect(herring.broadcast(np.full(1000, rank, np.int32), 1), 1)
    gathered = herring.allgather(np.full(40_000, rank, np.float32))
    for one in range(size):
        _expect(gathered[one * 40_000 : (one + 1) * 40_000], one)
    plan = herring.PlannedReduction([(50_000, "float32"), (3, "float32")])
    for step in range(2):
        plan.begin()
        plan.arena(0).view("float32")[:] = rank + step
        plan.ready(0)
        plan.ready(1)
        plan.wait()
        _expect(plan.arena(0).view("float32"), step + total / size)
    plan.close()
    _expect(herring.allreduce(np.full(100_000, rank, np.float32), "sum", algorithm="ring"), total)
    group = herring.new_group(list(range(size)))
    _expect(herring.allreduce(np.full(2000, rank, np.int64), "sum", group=group), total)
    group.destroy()
    if rank == 0:
        ask_for_status()
        herring.stop_timeline()
    herring.barrier()


def live(enter: Callable[[int], None], leaves: bool) -> dict[str, Any]:
    """Runs a worker up to the end of the interpreter.

    Args:
        enter: called with the number of each phase at its start.
        leaves: whether to call `herring.shutdown`; otherwise the end of the process does.

    Returns:
        ``errors``: for each error, its phase, class, whether it is a HerringError, and text.
        ``blocked``: the blocked signals.
    """
    errors: list[tuple[str, str, bool, str]] = []

    def attempt(phase: int, *calls: Callable[[], object]) -> None:
        enter(phase)
        try:
            for call in calls:
                call()
        except Exception as error:
            typed = isinstance(error, herring.HerringError)
            errors.append((PHASES[phase], type(error).__name__, typed, str(error)))

    attempt(0, herring.init)
    if not errors:
        attempt(1, operations)
        if leaves:
            attempt(2, herring.shutdown)
    result = {"errors": errors, "blocked": signal_mask()}
    enter(3)
    return result


def serve() -> dict[str, Any]:
    """Runs a dedicated server; returns the same keys as `live`."""
    errors = []
    try:
        run_server()
    except Exception as error:
        typed = isinstance(error, herring.HerringError)
        errors.append(("serve", type(error).__name__, typed, str(error)))
    return {"errors": errors, "blocked": signal_mask()}


def environment(role: int, size: int, layout: str, port: int, listener: int) -> dict[str, str]:
    """Returns the environment variables of one process of a job.

    Args:
        role: the process's rank if it is below `size`; otherwise the process is a server.
        size: number of ranks.
        layout: "node" (all ranks on one node), "nodes" (one node each), "served" (one node each,
            and a dedicated server), "tls" (the same, encrypted), or "failover" (one node each, and
            two dedicated servers that stand in for each other).
        port: port of the rendezvous.
        listener: rank 0's descriptor of the socket that listens at this port.
    """
    values = {
        "HERRING_SIZE": str(size),
        "HERRING_RENDEZVOUS": f"127.0.0.1:{port}",
        "HERRING_SECRET": "5a" * 32,
        "HERRING_SERVERS": {"served": "1", "tls": "1", "failover": "2"}.get(layout, "0"),
        "HERRING_FAILOVER": str(layout == "failover").lower(),
        "HERRING_TLS": "psk" if layout == "tls" else "off",
        "HERRING_HOST_ID": "one" if layout == "node" else f"host {role}",
        "HERRING_TIMEOUT": "60",
        "HERRING_LOG_LEVEL": "warning",
    }
    if role < size:
        values["HERRING_RANK"] = str(role)
    if role == 0:
        values["HERRING_RENDEZVOUS_FD"] = str(listener)
    return values
