"""Interrupts rank 0 while it waits for rank 1, and continues the job.

Rank 1 calls only when rank 0 says so. The arguments are the operation, the number of elements, and
the expected first element of the result.
"""

import sys

import numpy as np

import herring
from support import interrupt_when, tell, told, waits

herring.init()
array = np.ones(int(sys.argv[2]), np.float32)
herring.barrier()

call = {
    "barrier": herring.barrier,
    "allreduce": lambda: herring.allreduce(array, "sum"),
    "allgather": lambda: herring.allgather(array),
}[sys.argv[1]]

if herring.rank() == 0:
    interrupt_when(waits)
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    tell("interrupted")
else:
    told("interrupted")
    call()
herring.allreduce(np.zeros(3), name="after")  # the job continues
assert array.flat[0] == int(sys.argv[3]), array.flat[0]
