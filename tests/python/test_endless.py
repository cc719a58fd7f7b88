"""Time-outs that callers take for endless: none has passed at once, wherever one is taken."""

from __future__ import annotations

import pytest

from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(200)

# Near the edges too: of a signed 64-bit number of nanoseconds (292 years), and of milliseconds in
# 32 bits, in which time-outs travel (49 days).
VALUES = """
import datetime, sys, threading

herring.init()
rank, size = herring.rank(), herring.size()
VALUES = (
    float("inf"), threading.TIMEOUT_MAX, sys.float_info.max, 1e10, 2.0**63, 2.0**63 / 1e9,
    3.2e9, 2**32 / 1e3, 2**32 / 1e3 - 1e-3, 2**31 / 1e3, 4e6,
)

def late(wait):
    '''Calls `wait` on rank 0 for an operation that the others begin while it waits.'''
    failed = []
    def run():
        try:
            wait()
        except BaseException as error:
            failed.append(error)
    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(0.25)  # what has passed at once is seen after a slice of 0.1 s
    herring.barrier(name=f"late.{next(COUNT)}")
    return waiting, failed

import itertools
COUNT = itertools.count()
"""


def test_waits_and_operations() -> None:
    job = run_job(
        ["-n", "2"],
        VALUES
        + """
for value in VALUES:
    for turn, wait in enumerate((
        lambda handle: handle.wait(value),
        lambda handle: handle.exception(value),
        lambda handle: handle.wait(),
    )):
        array, own = np.ones(40_000, np.float32), value if turn == 2 else None
        start = lambda: herring.allreduce_async(array, "sum", timeout=own)
        if rank == 0:
            handle = start()
            waiting, failed = late(lambda: wait(handle))
            waiting.join(60)
            assert not waiting.is_alive() and not failed, (value, turn, failed)
        else:
            herring.barrier(name=f"late.{next(COUNT)}")
            start().wait()
        assert array[0] == size
    ones = np.ones(3, np.float32)
    herring.allreduce(ones.copy(), timeout=value)
    herring.broadcast(ones.copy(), timeout=value)
    herring.allgather(ones, timeout=value)
    herring.reduce_scatter(np.ones(4), timeout=value)
    herring.alltoall(np.ones(4), timeout=value)
    herring.reduce(ones, timeout=value)
    herring.gather(ones, timeout=value)
    herring.scatter(np.ones(4), timeout=value)
    herring.barrier(timeout=value)
    herring.broadcast_object("x", timeout=value)
    herring.allgather_object("x", timeout=value)
    herring.grouped_allreduce([ones.copy(), ones.copy()], timeout=value)
    herring.grouped_allreduce_async([ones.copy(), ones.copy()]).wait(value)
    herring.new_group([0, 1], timeout=value)
    if rank == 0:
        herring.send(ones, 1, timeout=value)
    else:
        herring.receive(ones.copy(), 0, timeout=value)
    assert herring.join(timeout=value) in (0, 1)
""",
        120,
    )
    expect_success(job)


def test_partial_and_planned_rounds() -> None:
    job = run_job(
        ["-n", "2"],
        VALUES
        + """
from herring.partial import PartialReduction, Quorum
from herring.planned import PlannedReduction

series = PartialReduction(8, "float32", sync=Quorum(size), op="sum")
plan = PlannedReduction([(1000, "float32")], op="sum")
for value in VALUES:
    array = np.ones(8, np.float32)
    series.contribute(array)
    if rank == 0:
        waiting, failed = late(lambda: series.take(array, value))
        waiting.join(60)
        assert not waiting.is_alive() and not failed, (value, failed)
    else:
        herring.barrier(name=f"late.{next(COUNT)}")
        series.take(array)
    plan.begin()
    if rank == 0:
        plan.ready(0)
        waiting, failed = late(lambda: plan.wait(value))
        waiting.join(60)
        assert not waiting.is_alive() and not failed, (value, failed)
    else:
        herring.barrier(name=f"late.{next(COUNT)}")
        plan.ready(0)
        plan.wait()
""",
    )
    expect_success(job)


def test_torch_distributed() -> None:
    pytest.importorskip("torch.distributed")
    job = run_job(
        ["-n", "2"],
        """
import datetime, torch, torch.distributed as dist
import herring.torch
herring.init()
import threading
endless = datetime.timedelta.max
dist.init_process_group("herring", init_method="herring://", timeout=datetime.timedelta(days=10**6))
for limit in (endless, datetime.timedelta(days=106752), datetime.timedelta(days=10**6)):
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(limit)
    assert tensor[0] == 2
dist.destroy_process_group()
""",
    )
    expect_success(job)
