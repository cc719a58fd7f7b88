"""Closes a plan whose GPU hangs, and lets the kernel end afterwards."""

import ctypes
import time

import numpy as np

import herring
from gpu_job import GpuArray, driver
from support import raises

plan = herring.PlannedReduction([(300_000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
plan.begin()
arena.fill(1, 15_000_000)
plan.ready(0)
stream = arena.stream
del arena
start = time.monotonic()
plan.close()
took = time.monotonic() - start
assert 6 < took < 10, took  # The time-out comes first, then 5 s pass.
raises(herring.HerringError, "was closed inside round 0", herring.allreduce, np.ones(3))
# This waits for the kernel, which writes to memory that must still be there.
driver.order(ctypes.c_void_p(stream), None)
time.sleep(0.3)  # The copies behind the kernel end, too.
print("closed")
