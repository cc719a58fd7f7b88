"""A series loses rank 2's server; operations that do not need the server continue."""

import os
import signal
import threading
import time

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises

herring.init()
group = herring.new_group([0, 1])
series = PartialReduction(300_000, "float32", sync="majority", op="sum")
array = np.ones(300_000, np.float32)
series.allreduce(array)
if herring.rank() < 2:

    def go_on():
        while True:
            series.allreduce(array)

    raises(herring.PeerLostError, "rank 2 (", go_on)
    for _ in range(40):  # lasts longer than the time-out
        herring.barrier(group=group)
        time.sleep(0.1)
    print("went on", flush=True)
else:  # its server would stay for the series
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    raises(KeyboardInterrupt, "", herring.shutdown)
