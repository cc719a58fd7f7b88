"""Calls from a program inside a capture, and with memory off the GPU; all ranks refuse it."""

import ctypes

import numpy as np

import herring
from herring import _core
from support import stay_until_all_know
from xla_job import Program, array, driver, rank

mine = array(np.zeros(1000, np.float32))
program = Program(mine)
if rank == 0:
    driver.capture(ctypes.c_void_p(mine.stream), True)
code, text = program.start("k", [mine], [mine]) or program.finish("k", [mine]) or (0, "")
if rank == 0:
    assert code == 3 and "captured for a CUDA graph" in text, text
    driver.capture(ctypes.c_void_p(mine.stream), False)
mine.get()
_core.jax.settle(600)  # until the host knows how the call has ended
if not code:
    code, text = program.start("l", [mine], [mine])
assert code == 3 and "captured for a CUDA graph" in text, text
program.token.address, there = np.zeros(8).ctypes.data, program.token.address
code, text = program.start("m", [mine], [mine])
assert code == 3 and "does not lie in the memory of a GPU" in text, text
program.token.address = there
stay_until_all_know(rank, [0, 1])
herring.shutdown()
