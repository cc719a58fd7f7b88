"""Both servers are replaced after a member has destroyed a group that others still use."""

import signal

import numpy as np

import herring
from serving import replace

herring.init()
rank = herring.rank()
group = herring.new_group([0, 1, 2], name="trio")
herring.allreduce(np.ones(100_000, np.float32), "sum", name="a", group=group)
herring.barrier()
if rank == 0:
    group.destroy()
herring.barrier()
for server in (0, 1):
    if rank == 0:
        replace(server, signal.SIGKILL)
    herring.barrier()
if rank > 0:
    for name in "bcde":  # whichever server they belong to
        try:
            herring.allreduce(np.ones(100, np.float32), "sum", name=name, group=group)
            raise AssertionError("rank 0 took part")
        except herring.PeerLostError as error:
            assert "has destroyed the group" in str(error), error
herring.barrier()
print("told", flush=True)
