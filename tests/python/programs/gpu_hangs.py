"""Closes a plan whose GPU hangs, and lets the kernel end afterwards."""

import ctypes
import time

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, driver
from support import raises

plan = herring.PlannedReduction([(300_000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
plan.begin()
gate = Gate()
gate.hold(arena)
arena.fill(1)
plan.ready(0)
stream = arena.stream
del arena
start = time.monotonic()
plan.close()
took = time.monotonic() - start
assert took > 4.9, took  # What is left of the timeout comes first, then 5 s pass.
raises(herring.HerringError, "was closed inside round 0", herring.allreduce, np.ones(3))
gate.open()
# The kernel and the copies behind it write to memory that must still be there.
driver.order(ctypes.c_void_p(stream), None)
driver.synchronize(0)
print("closed")
