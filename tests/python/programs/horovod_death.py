"""Rank 2 dies: operations and process sets of the other ranks fail."""

import os
import signal

import torch

import herring
import herring.horovod.torch as hvd
from support import raises, stay_until_all_know, tell, told

try:
    hvd.rank()
except ValueError as error:
    assert "init" in str(error)
hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
both = hvd.add_process_set([0, 2])
hvd.allreduce(torch.ones(1))
if hvd.rank() == 2:
    told("called 0", "called 1")
    os.kill(os.getpid(), signal.SIGKILL)
handle = hvd.allreduce_async(torch.ones(3), name="lost")
tell(f"called {hvd.rank()}")
raises(hvd.HorovodInternalError, "rank 2", hvd.synchronize, handle)
raises(herring.PeerLostError, "rank 2", hvd.allreduce, torch.ones(3))
raises(hvd.HorovodInternalError, "rank 2", hvd.allreduce, torch.ones(3))
stay_until_all_know(hvd.rank(), [0, 1])
hvd.shutdown()
assert both.process_set_id is None
print("survived")
