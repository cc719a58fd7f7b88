"""A Session runs many collectives, whose tensors are ready in another order on each rank."""

import time

import numpy as np
import tensorflow as tf

import herring.horovod.tensorflow as hvd

hvd.init()
rank, numbers = hvd.rank(), range(8)


def late(value, turn):
    time.sleep(0.02 * turn)
    return value


v1 = tf.compat.v1
with tf.Graph().as_default():
    values = [
        tf.numpy_function(late, [tf.fill([3], float(i)), i if rank else 7 - i], tf.float32)
        for i in numbers
    ]
    wholes = []
    for i, one in enumerate(values):
        total = hvd.allreduce(one, name=f"sum {i}", op=hvd.Sum)
        wholes.append(hvd.allgather(total + rank, name=f"whole {i}"))
    with v1.Session(config=v1.ConfigProto(inter_op_parallelism_threads=1)) as session:
        for _ in range(3):
            for i, found in zip(numbers, session.run(wholes)):
                assert np.array_equal(found, [2 * i] * 3 + [2 * i + 1] * 3), found
