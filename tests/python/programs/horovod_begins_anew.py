"""The job fails on all ranks. Then init() alone does nothing; after shutdown() it begins anew."""

from __future__ import annotations

import torch

import herring
import herring.horovod.torch as hvd
from support import meet_outside, raises

hvd.init()
for number in range(3):
    rank, size = hvd.rank(), hvd.size()
    found = hvd.allreduce(torch.full((3,), float(rank)), op=hvd.Sum)
    assert found.tolist() == [size * (size - 1) / 2] * 3, found
    meet_outside(rank, range(size), f"in job {number}")
    if rank == number % size:
        herring.abort(f"failure {number}")
    raises(hvd.HorovodInternalError, f"failure {number}", hvd.allreduce, torch.ones(3))
    hvd.init()
    assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (rank, size)
    raises(hvd.HorovodInternalError, f"failure {number}", hvd.allreduce, torch.ones(3))
    hvd.shutdown()
    hvd.init()
hvd.barrier()
print("went on", flush=True)
