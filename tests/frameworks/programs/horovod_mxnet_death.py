"""A rank is killed before an all-reduce; the other ranks print when they learn of it."""

import os
import signal
import time

import mxnet as mx

import herring.horovod.mxnet as hvd

hvd.init()
start = time.time()  # Other ranks may learn of the death one step earlier.
try:
    for step in range(1000000):
        if step == 20:
            start = time.time()
            if hvd.rank() == int(os.environ["VICTIM"]):
                os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(mx.nd.ones((2, 4)))
except hvd.HorovodInternalError as error:
    assert "rank 1" in str(error)
    print(f"learned in {time.time() - start:.2f} s", flush=True)
