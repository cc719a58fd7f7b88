"""A series loses rank 2's server; operations that do not need the server continue.

The series has HERRING_TIMEOUT; the other operations have more time, however busy the machine is.
"""

import contextlib
import time

import numpy as np

import herring
from herring.partial import PartialReduction
from support import interrupt_when, is_leaving, meet_outside, raises

herring.init()
group = herring.new_group([0, 1], timeout=600)
series = PartialReduction(300_000, "float32", sync="majority", op="sum")
array = np.ones(300_000, np.float32)
series.allreduce(array)
meet_outside(herring.rank(), range(3))
if herring.rank() < 2:

    def go_on():
        while True:
            with contextlib.suppress(herring.TimeoutError):
                series.allreduce(array)

    raises(herring.PeerLostError, "rank 2 (", go_on)
    for _ in range(70):  # lasts longer than the timeout
        herring.barrier(group=group, timeout=600)
        time.sleep(0.1)
    print("went on", flush=True)
else:  # its server would stay for the series
    interrupt_when(is_leaving)
    raises(KeyboardInterrupt, "", herring.shutdown)
