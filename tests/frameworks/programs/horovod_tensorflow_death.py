"""A rank is killed between the steps of a function; the other ranks print when they learn of it."""

import os
import signal

import tensorflow as tf

import herring.horovod.tensorflow as hvd

hvd.init()


@tf.function
def step():
    return hvd.allreduce(tf.ones([1000]))


step()
try:
    for i in range(1000000):
        if i == 20 and hvd.rank() == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)
        step()
except tf.errors.OpError as error:
    assert "rank 1" in str(error), error
    try:
        hvd.allreduce(tf.ones([1]))
    except hvd.HorovodInternalError as error:
        assert "rank 1" in str(error), error
        print("has learned of it", flush=True)
