"""A member dies, perhaps with its machine's server, while groups are being formed."""

import os
import signal

import numpy as np

import herring

herring.init()
r, n = herring.rank(), herring.size()
victim = n - 1
rest = herring.new_group(range(n - 1)) if r != victim else None
herring.barrier()
for number in range(1000):
    if r == victim and number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        herring.new_group(range(n), name=f"g{number}")
    except herring.PeerLostError as error:
        assert f"rank {victim} (" in str(error), error
        break
assert 19 <= number < 999, number  # 19: complete on the victim, not yet here
array = np.full(100_000, 1.0, np.float32)
assert (herring.allreduce(array, "sum", group=rest) == n - 1).all()
print("went on", r, flush=True)
