"""A rank is killed before an all-reduce; the other ranks print when they learn of it."""

import os
import signal

import mxnet as mx

import herring.horovod.mxnet as hvd

hvd.init()
try:
    for step in range(1000000):
        if step == 20 and hvd.rank() == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(mx.nd.ones((2, 4)))
except hvd.HorovodInternalError as error:
    assert "rank 1" in str(error)
    print("has learned of it", flush=True)
