"""Lets a FUNCTION of the driver fail in a call of a program.

The other rank, which begins the same call then, waits until its timeout.
"""

import os

import numpy as np

import herring
from support import tell, told
from xla_job import Program, array, driver, rank

mine = array(np.zeros(100_000, np.float32))
program = Program(mine)
for _ in range(2):
    assert program.start("k", [mine], [mine]) is None and program.finish("k", [mine]) is None
    mine.get()
if rank == 1:
    told("failed")  # Before, its call could reach its timeout first.
driver.fail(os.environ["FUNCTION"].encode(), 1 if rank == 0 else 0, 719, False)
error = program.start("k", [mine], [mine], timeout=2.0) or program.finish("k", [mine])
driver.fail(b"", 0, 0, False)
tell("failed")
mine.get()
if rank == 0:
    assert error[0] == 13 and "herring.DeviceError: GPU 0: " in error[1], error
    assert os.environ["FUNCTION"] in error[1], error
herring.barrier()
print("all right")
herring.shutdown()
