"""Lets the driver call number NTH of rank 0 fail; every rank prints its error.

Without an error, its results are right. All timeouts are longer than the job may take.
"""

import os

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank, size
from support import meet_outside

first, second = (GpuArray(np.full(1_000_000, 1 + 2 * rank, np.float32)) for _ in range(2))


def allreduces():
    for _ in range(3):
        herring.allreduce(first, "sum")
    return [first], 16


def lists():
    for _ in range(3):
        herring.grouped_allreduce([first, second], "sum")
    return [first, second], 16


def casts():
    return rounds("bfloat16")


def rounds(wire_dtype=None):
    plan = herring.PlannedReduction(
        [(500_000, "float32")] * 2, name="p", device=0, wire_dtype=wire_dtype
    )
    plan.place([first])
    for _ in range(5):
        plan.begin()
        plan.ready_all([1, 0])
        plan.wait()
    if rank == 0:
        print("closed after call", driver.calls(None) - before)
    return [first], 2


herring.barrier()
meet_outside(rank, range(size))
before = driver.calls(None)
if rank == 0:
    driver.fail(None, int(os.environ["NTH"]), 719, os.environ["STICKY"] == "1")
try:
    arrays, expected = {"allreduces": allreduces, "lists": lists, "rounds": rounds, "casts": casts}[
        os.environ["CALLS"]
    ]()
    assert all((array.get() == expected).all() for array in arrays), arrays[0].get()
    print(f"rank {rank}: no error")
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
if rank == 0:
    print("failed call:", driver.failed().decode())
