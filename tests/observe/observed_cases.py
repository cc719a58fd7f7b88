"""The table of cases: a job, a fault, and who should be named with which cause."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading

from observed import Case, Run

__all__ = ["CASES", "QUICK"]


def stop(*ranks: int, seconds: float = 0, server: bool = False):
    """Stops processes; continues them after some seconds, if these are given."""

    def act(run: Run) -> None:
        pids = [run.server(i) if server else run.rank(i) for i in ranks]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if seconds:
            threading.Timer(seconds, lambda: [os.kill(p, signal.SIGCONT) for p in pids]).start()

    return act


def rate(host: int, bits: float, side: str = "both"):
    """Gives a host a slow link in one direction or both."""

    def act(run: Run) -> None:
        assert run.cluster is not None
        space = run.cluster.namespace(host)
        switch = f"{space.rpartition('-')[0]}-sw0"
        shape = f"tbf rate {int(bits)}bit burst 16000 latency 50ms".split()
        for name, where, device in (("sends", space, "eth0"), ("gets", switch, f"p{host}")):
            if side in ("both", name):
                tc = ["tc", "-n", where, "qdisc", "replace", "dev", device, "root", *shape]
                subprocess.run(tc, check=True)

    return act


def cut(host: int, switch: bool = False):
    """Takes a host's link down."""

    def act(run: Run) -> None:
        assert run.cluster is not None
        space, device = run.cluster.namespace(host), "eth0"
        if switch:
            space, device = f"{space.rpartition('-')[0]}-sw0", f"p{host}"
        subprocess.run(["ip", "-n", space, "link", "set", device, "down"], check=True)

    return act


def starve(server: int):
    """Leaves a server little of one processor."""

    def act(run: Run) -> None:
        pid = run.server(server)
        for task in os.listdir(f"/proc/{pid}/task"):
            subprocess.run(["taskset", "-cp", "0", task], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["renice", "-n", "19", "-p", task], check=True, stdout=-3)
        run.burn(0, 2)

    return act


def starve_rank(rank: int):
    """Leaves a rank little of one processor."""

    def act(run: Run) -> None:
        pid = run.rank(rank)
        for task in os.listdir(f"/proc/{pid}/task"):
            subprocess.run(["taskset", "-cp", "0", task], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["renice", "-n", "19", "-p", task], check=True, stdout=-3)
        run.burn(0, 3)

    return act


def burn(run: Run) -> None:
    """Gives all processors other work."""
    run.burn(0, 1)
    run.burn(1, 1)


def both(*acts):
    def act(run: Run) -> None:
        for one in acts:
            one(run)

    return act


def fault(what: str, *ranks: int, **others) -> dict:
    return {"what": what, "ranks": list(ranks), **others}


STEP = 0.06  # seconds of computing
HALVES = {"groups": [[0, 1], [2, 3]]}
ACROSS = {"groups": [[0, 2], [1, 3]]}  # of two nodes


def chronic(name: str, rank: int, what: str, cause: str, seconds: float = 0.06, **others) -> Case:
    """A rank that is late in every step."""
    every, early = others.pop("every", 1), others.pop("early", False)
    step = others.get("program", {}).get("compute", STEP)
    return Case(
        name,
        {f"rank {rank}": set(cause.split(" or "))},
        # A rank is late again and again when it was late in ten steps.
        known=10 * (every * step + seconds),
        faults=(fault(what, rank, seconds=seconds, first=12, every=every, early=early),),
        chronic=True,
        **others,
    )


def once(name: str, rank: int, what: str, cause: str, seconds: float = 0.9, **others) -> Case:
    """A rank that is late in one step."""
    return Case(
        name,
        {f"rank {rank}": set(cause.split(" or "))},
        known=seconds,
        faults=(fault(what, rank, seconds=seconds, first=20, last=21, count=1),),
        **others,
    )


def hang(name: str, rank: int, what: str, cause: str, says: str, **others) -> Case:
    """A rank that never goes on, for which the others wait."""
    return Case(
        name,
        {f"rank {rank}": {cause}},
        known=1.0,
        faults=(fault(what, rank, seconds=1000, first=20),),
        warns=(rf"waited .*rank {rank}\b.*{says}",),
        **others,
    )


SEEN = (
    # Late in every step.
    chronic("late by sleeping", 2, "sleep", "compute"),
    chronic("late by computing, one node", 1, "busy", "compute", layout="node"),
    chronic("late, dedicated servers", 3, "sleep", "compute", layout="dedicated"),
    chronic("late, on hosts", 1, "sleep", "compute", layout="hosts"),
    chronic("late in every second step", 2, "sleep", "compute", every=2, seconds=0.1),
    chronic("late in named calls", 2, "sleep", "compute", kind="calls", layout="nodes"),
    chronic("late in DDP", 1, "sleep", "compute", kind="ddp", layout="nodes"),
    chronic("rank 0 is late", 0, "sleep", "compute"),
    chronic("late by input", 2, "input", "input"),
    chronic("late by input, one node", 3, "input", "input", layout="node"),
    chronic("late by input before computing", 1, "input", "input", early=True),
    chronic("late by a DataLoader in DDP", 1, "loader", "input", kind="ddp"),
    chronic("late by checkpoints", 1, "checkpoint", "checkpoint", seconds=0.1),
    chronic("late by reading pages from a disk", 2, "pages", "swapping", seconds=0.08),
    # Late once.
    once("late once", 2, "sleep", "compute"),
    once("late once, one node", 1, "sleep", "compute", layout="node"),
    once("late once by input", 3, "input", "input"),
    once("a slow disk in a checkpoint", 0, "checkpoint", "checkpoint", seconds=1.2),
    once("a slow disk in torch.save", 1, "save", "checkpoint", seconds=1.2, kind="ddp"),
    once("late once, dedicated servers", 1, "sleep", "compute", layout="dedicated"),
    # Links.
    *(
        Case(
            f"a slow link {words}",
            {"rank 2": {"link"}},
            known=2.0,
            layout=layout,
            outside=rate(2, 15e6, side),
            chronic=True,
        )
        for words, layout, side in (
            ("both ways", "hosts", "both"),
            ("to send", "hosts", "sends"),
            ("to receive", "hosts", "gets"),
            ("both ways, dedicated servers", "hosts and servers", "both"),
            ("to send, dedicated servers", "hosts and servers", "sends"),
        )
    ),
    Case(
        "a server with a slow link",
        {"server 1": {"link"}},
        known=2.0,
        layout="hosts and servers",
        outside=rate(5, 15e6),
    ),
    # Servers.
    Case(
        "a server that lacks a processor",
        {"server 1": {"starved"}},
        known=2.0,
        layout="dedicated",
        outside=starve(1),
        program={"bytes": 4_000_000},
    ),
    Case(
        "a server that stands still for a while",
        {"server 0": {"stopped"}},
        known=1.0,
        layout="dedicated",
        outside=stop(0, seconds=2, server=True),
    ),
    Case(
        "a stopped server",
        {"server 1": {"stopped"}},
        known=1.0,
        layout="dedicated",
        outside=stop(1, server=True),
    ),
    # Ranks that stand still.
    Case(
        "a stopped rank",
        {"rank 2": {"stopped"}},
        known=1.0,
        layout="dedicated",
        outside=stop(2),
        warns=(r"waited .*rank 2\b.*stopped",),
    ),
    Case(
        "a stopped rank, one node",
        {"rank 3": {"stopped"}},
        known=1.0,
        layout="node",
        outside=stop(3),
        warns=(r"waited .*rank 3\b.*stopped",),
    ),
    Case(
        "a rank stopped for two seconds",
        {"rank 1": {"stopped"}},
        known=1.0,
        layout="dedicated",
        outside=stop(1, seconds=2),
    ),
    Case(
        "a rank stopped in calls among workers",
        {"rank 1": {"stopped"}},
        known=1.0,
        layout="hosts",
        kind="calls",
        program={"algorithm": "ring"},
        outside=stop(1),
        warns=(r"waited .*rank 1\b.*stopped",),
    ),
    Case(
        "a cut link",
        {"rank 2": {"unreachable", "lost"}},
        known=1.0,
        layout="hosts and servers",
        outside=cut(2),
    ),
    Case(
        "a cut link of a server",
        {"server 1": {"unreachable", "lost"}},
        known=1.0,
        layout="hosts and servers",
        outside=cut(5, switch=True),
    ),
    # Ranks that never come.
    hang("a hung rank", 2, "hang", "compute", r"been computing for .*in _hang"),
    hang(
        "a hung rank, one node",
        1,
        "hang",
        "compute",
        r"been computing for .*_hang",
        layout="node",
    ),
    hang(
        "a hung rank in calls",
        1,
        "hang",
        "compute",
        r"been computing for .*_hang",
        kind="calls",
    ),
    hang("a hung data loader", 3, "input", "input", r"in its input"),
    hang("a hung DataLoader in DDP", 1, "loader", "input", r"in its input", kind="ddp"),
    hang("a hung disk", 2, "checkpoint", "checkpoint", "in its checkpoint", layout="dedicated"),
    # Mistakes of programs.
    Case(
        "a wrong order of calls",
        {},
        known=1.0,
        kind="calls",
        faults=(fault("order", 2, first=12),),
        program={"orders": True},
        says=(r"'first'.*rank 2\b.*waits in .*'second'",),
        also=("rank 2", "rank 0", "rank 1", "rank 3"),
    ),
    Case(
        "another shape",
        {},
        known=0.0,
        kind="calls",
        faults=(fault("shape", 2, first=12),),
        says=(r"rank 2.*999",),
    ),
    Case(
        "a different collective",
        {},
        known=0.0,
        kind="calls",
        faults=(fault("other", 1, first=12),),
        says=(r"rank 1.*broadcast|broadcast.*rank 1",),
    ),
    Case(
        "a call that others do not make",
        {"rank 1": {"waiting", "missing", "unknown"}},
        known=1.0,
        kind="calls",
        faults=(fault("skip", 1, first=12),),
        says=(r"rank 1\b.*waits in .*'extra'",),
        also=("rank 0", "rank 2", "rank 3"),
    ),
    Case(
        "an exception on one rank",
        {},
        known=0.0,
        faults=(fault("exception", 2, first=12),),
        says=(r"rank 2.*(lost|left|ended|died)|lost rank 2",),
        also=("rank 2",),
    ),
    # Two at once.
    Case(
        "a late rank and a slow link",
        {"rank 1": {"compute"}, "rank 2": {"link"}},
        known=3.0,
        layout="hosts",
        outside=rate(2, 15e6),
        faults=(fault("sleep", 1, seconds=0.15, first=30),),
    ),
    Case(
        "two late ranks",
        {"rank 1": {"compute"}, "rank 3": {"input"}},
        known=10 * (STEP + 0.1),
        layout="dedicated",
        faults=(
            fault("sleep", 1, seconds=0.1, first=12),
            fault("input", 3, seconds=0.1, first=12),
        ),
        chronic=True,
    ),
    Case(
        "a stopped and a hung rank",
        {"rank 1": {"stopped"}, "rank 2": {"compute"}},
        known=1.0,
        outside=stop(1),
        layout="dedicated",
        faults=(fault("hang", 2, first=33),),
    ),
    # Healthy jobs: nobody may be accused.
    Case("healthy", {}),
    Case("healthy, one node", {}, layout="node"),
    Case("healthy, dedicated servers", {}, layout="dedicated"),
    Case("healthy, on hosts", {}, layout="hosts"),
    Case("healthy, with jitter", {}, layout="dedicated", program={"jitter": 0.3}),
    Case("healthy, under load", {}, layout="node", outside=burn),
    Case("healthy, in calls", {}, kind="calls", program={"jitter": 0.2}),
    Case("healthy, in DDP", {}, kind="ddp", layout="node"),
    Case(
        "healthy, on slow links",
        {},
        layout="hosts and servers",
        rate=30e6,
    ),
)

# These were written down before any of them was tried, see Case.held_out.
HELD_OUT = (
    # Other causes.
    chronic("late by a thread that keeps the interpreter", 2, "gil", "compute", seconds=0.05),
    chronic(
        "late by a memory-mapped data set",
        1,
        "memmap",
        "swapping or input",
        seconds=0.08,
        layout="node",
    ),
    once("rank 0 evaluates once", 0, "evaluate", "evaluation or compute", seconds=1.3),
    # Long steps.
    Case(
        "late once in a job with a step per 5 s",
        {"rank 2": {"compute"}},
        known=1.0,
        faults=(fault("sleep", 2, seconds=3, first=3, last=4),),
        program={"compute": 5.0, "ready": 1},
    ),
    chronic(
        "late in steps of 2 s",
        1,
        "sleep",
        "compute",
        seconds=0.4,
        layout="dedicated",
        program={"compute": 2.0, "ready": 2},
    ),
    Case(
        "healthy, a step per 5 s with jitter",
        {},
        lasts=32.0,
        program={"compute": 5.0, "ready": 1, "jitter": 0.2},
        settings={"HERRING_WARN_AFTER": "10"},  # two seconds are usual there
    ),
    # Near the threshold.
    chronic(
        "late by a tenth of a step",
        3,
        "sleep",
        "compute",
        seconds=0.012,
        layout="node",
        program={"compute": 0.1},
    ),
    Case(
        "later than others by a fiftieth of a step",
        {},
        layout="node",
        faults=(fault("sleep", 3, seconds=0.002, first=6),),
        program={"compute": 0.1},
    ),
    # Lateness that ends, or changes.
    Case(
        "a late rank that recovers",
        {"rank 2": {"compute"}},
        known=10 * (STEP + 0.06),
        faults=(fault("sleep", 2, seconds=0.06, first=12, last=80),),
        chronic=True,
        clears=3.0,
        lasts=16.0,
    ),
    Case(
        "lateness that moves to another rank",
        {"rank 1": {"compute"}, "rank 3": {"compute"}},
        known=10 * (STEP + 0.06),
        layout="dedicated",
        faults=(
            fault("sleep", 1, seconds=0.06, first=12, last=50),
            fault("sleep", 3, seconds=0.06, first=50),
        ),
        chronic=True,
    ),
    Case(
        "two ranks late in turn",
        {"rank 1": {"compute"}, "rank 2": {"compute"}},
        known=20 * (STEP + 0.1),
        faults=(
            fault("sleep", 1, seconds=0.1, first=12, every=2),
            fault("sleep", 2, seconds=0.1, first=13, every=2),
        ),
        chronic=True,
    ),
    # Groups and partial rounds.
    chronic("late in a group on a node", 3, "sleep", "compute", kind="groups", program=HALVES),
    chronic(
        "late by input in a group over nodes", 0, "input", "input", kind="groups", program=ACROSS
    ),
    hang(
        "a hung rank in a group",
        1,
        "hang",
        "compute",
        r"been computing for .*_hang",
        kind="groups",
        program=ACROSS,
    ),
    Case(
        "late in partial rounds, for which nobody waits",
        {},
        layout="dedicated",
        kind="partial",
        # Late by less than the staleness of four rounds, for which others wait.
        faults=(fault("sleep", 2, seconds=0.1, first=6),),
    ),
    # Other layouts and sizes.
    chronic(
        "late by input, six ranks on three nodes", 5, "input", "input", layout="three nodes", size=6
    ),
    Case(
        "healthy, six ranks with jitter", {}, layout="three nodes", size=6, program={"jitter": 0.3}
    ),
    chronic(
        "late, small gradients", 0, "sleep", "compute", layout="hosts", program={"bytes": 4_000}
    ),
    chronic(
        "late in calls among workers",
        2,
        "sleep",
        "compute",
        layout="hosts",
        kind="calls",
        program={"algorithm": "ring"},
    ),
    once("late once in calls", 1, "sleep", "compute", seconds=1.5, kind="calls"),
    # Links and servers.
    Case(
        "a slow link in calls",
        {"rank 2": {"link"}},
        known=2.0,
        layout="hosts",
        kind="calls",
        outside=rate(2, 15e6),
    ),
    Case(
        "a slow link, large gradients",
        {"rank 1": {"link"}},
        known=2.0,
        layout="hosts and servers",
        outside=rate(1, 40e6),
        program={"bytes": 1_000_000},
    ),
    Case(
        "a slow link of two ranks",
        {"rank 2": {"link"}},  # and rank 3, which pushes nothing of a buffer of one segment
        known=2.0,
        layout="hosts of two",
        outside=rate(1, 15e6),
        also=("rank 3",),
    ),
    Case(
        "a server on a busy host",
        {"server 0": {"starved"}},
        known=2.0,
        layout="hosts and servers",
        outside=starve(0),
        program={"bytes": 4_000_000},  # so that ranks wait for this server
        rate=None,
    ),
    # Two at once.
    Case(
        "a late rank and a server with a slow link",
        {"rank 3": {"input"}, "server 0": {"link"}},
        known=3.0,
        layout="hosts and servers",
        outside=rate(4, 15e6),
        faults=(fault("input", 3, seconds=0.15, first=12),),
    ),
    Case(
        "a late rank and a server that stands still",
        {"rank 3": {"input"}, "server 0": {"stopped"}},
        known=2.0,
        layout="dedicated",
        outside=stop(0, seconds=2, server=True),
        faults=(fault("input", 3, seconds=0.1, first=12),),
    ),
    Case(
        "a slow disk and a slow input, each once",
        {"rank 0": {"checkpoint"}, "rank 2": {"input"}},
        known=1.2,
        faults=(
            fault("checkpoint", 0, seconds=1.2, first=20, last=21, count=1),
            fault("input", 2, seconds=0.9, first=28, last=29, count=1),
        ),
    ),
)

CASES = (*SEEN, *(dataclasses.replace(case, held_out=True) for case in HELD_OUT))

#: Representative cases that take a minute in all.
QUICK = (
    "late by input",
    "late once, one node",
    "a stopped rank",
    "a hung rank, one node",
    "healthy, with jitter",
)
