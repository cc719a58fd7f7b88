"""Servers die between the rounds of a plan, and are replaced; the sums stay right.

Rank 0 does to the servers what its arguments say, one after another: "kill 1", or "stop 0" for
SIGSTOP. Before the next round it waits until the job's status shows that the place is taken again.
With "break 1" it ends its connection to that server, which lives, in the middle of a round. With
"await NAME" it waits for a file. "pause 1" stops a server in the middle of a round, which ends
without it, and "replaced 1" waits for another one. "wake 1" lets the process go on in the middle of
a round, and rounds follow until there is a file "woken".
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import herring
from serving import await_replaced, replace, servers

ELEMENTS = 300_000


def listening_ports(pid: int) -> set[int]:
    """Returns the ports at which a process accepts connections."""
    sockets = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        int(line[1].split(":")[1], 16)
        for line in lines
        if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


def break_connection(ports: set[int]) -> None:
    """Ends the connection of this process to the server with these ports, as `ss -K` does."""
    broken = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family == socket.AF_INET and one.getpeername()[1] in ports:
                    one.shutdown(socket.SHUT_RDWR)
                    broken += 1
        except (OSError, ValueError):  # no socket, not connected, or closed meanwhile
            continue
    assert broken == 1, broken


def stop(pid: int) -> None:
    """Stops a process, and returns when all its threads stand: until then they may go on."""
    os.kill(pid, signal.SIGSTOP)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        while (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)


def reduce(
    plan: herring.PlannedReduction,
    ranks: range,
    number: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Runs a round in which every rank has other numbers, and checks the sums."""
    arena = plan.arena(0).view(np.float32)
    arena[:ELEMENTS] = np.arange(ELEMENTS) % 1000 + 1000 * herring.rank() + number
    plan.begin()
    meanwhile()
    plan.ready(0)
    plan.wait()
    expected = len(ranks) * (np.arange(ELEMENTS) % 1000 + number) + 1000 * sum(ranks)
    np.testing.assert_array_equal(arena[:ELEMENTS], expected.astype(np.float32))


def rounds_while_it_wakes(step: int, pid: int) -> None:
    """Makes rounds until the test has seen what becomes of a stopped process (rank 0's `pid`)."""
    reduce(plan, range(size), step, lambda: os.kill(pid, signal.SIGCONT) if rank == 0 else None)
    while herring.broadcast(np.array([not (folder / "woken").exists()]), 0)[0]:
        step += 1
        reduce(plan, range(size), step)


herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(ELEMENTS, "float32")], name="rounds", op="sum")
group = herring.new_group(list(range(1, size)), name="some")
some = None
if rank > 0:
    some = herring.PlannedReduction([(ELEMENTS, "float32")], name="some", op="sum", group=group)
folder = Path(os.environ["FAILOVER_FOLDER"])
paused, since = 0, 0.0
for step, what in enumerate(["", *sys.argv[1:]]):
    if what:
        kind, name = what.split()
        if rank == 0 and kind == "break":
            ports = listening_ports(servers()[int(name)]["pid"])
            began = time.monotonic()
            reduce(plan, range(size), step, lambda ports=ports: break_connection(ports))
            print(f"the step took {time.monotonic() - began:.3f} s", flush=True)
            await_replaced(int(name), began)
            (folder / str(step)).touch()
        elif kind == "break":
            reduce(plan, range(size), step)
        elif rank == 0 and kind == "pause":
            paused, since = servers()[int(name)]["pid"], time.monotonic()
            print(f"stops process {paused}", flush=True)
            reduce(plan, range(size), step, lambda: stop(paused))
            assert servers()[int(name)]["lost"] is not None
            (folder / str(step)).touch()
        elif rank == 0 and kind == "replaced":
            await_replaced(int(name), since)
            (folder / str(step)).touch()
        elif kind == "wake":
            rounds_while_it_wakes(step, paused)
            (folder / str(step)).touch()
        elif kind == "pause":
            reduce(plan, range(size), step)
        elif rank == 0 and kind not in ("await", "replaced"):
            replace(int(name), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            (folder / str(step)).touch()
        while not (folder / (name if kind == "await" else str(step))).exists():
            time.sleep(0.01)
    for number in range(3):
        reduce(plan, range(size), step + number)
        if some is not None:
            reduce(some, range(1, size), step + number)
plan.close()
if some is not None:
    some.close()
print(f"rank {rank} is done", flush=True)
