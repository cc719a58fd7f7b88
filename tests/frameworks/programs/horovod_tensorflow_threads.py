"""Functions in several threads call collectives, in another order on each rank."""

import threading

import numpy as np
import tensorflow as tf

import herring.horovod.tensorflow as hvd

tf.config.threading.set_inter_op_parallelism_threads(1)
hvd.init()
rank, failed = hvd.rank(), []


def work(number):
    @tf.function
    def step(x):
        total = hvd.allreduce(x, name=f"first of {number}", op=hvd.Sum)
        rows = hvd.allgather(x[:1] + number, name=f"rows of {number}")
        return hvd.allreduce(total + rank, name=f"second of {number}"), rows

    try:
        for i in range(20):
            total, rows = step(tf.fill([20000], float(rank + i)))
            assert np.allclose(total, 2 * i + 1.5), total
            assert np.allclose(rows, [i + number, i + number + 1]), rows
    except BaseException as error:
        failed.append(error)


threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads if rank == 0 else reversed(threads):
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
