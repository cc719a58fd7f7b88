"""Cases of tf.compat.v1 graphs, which a Session runs in any order (test_horovod_tensorflow.py)."""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import herring
import herring.horovod.tensorflow as hvd
import herring.tensorflow
from horovod_tensorflow_cases import raises


def test_graphs_without_order(rank, size):
    """TensorFlow executes a graph of tf.compat.v1 in any order, here another order on rank 0."""
    v1 = tf.compat.v1

    def late(x, place):
        """Delays `x`: rank 0 gets tensors in ascending order of `place`, others in descending."""
        turn = place if rank == 0 else 3 - place
        return tf.reshape(tf.numpy_function(lambda x: pause(turn, x), [x], x.dtype), x.shape)

    def pause(turn, x):
        time.sleep(0.1 * turn)
        return x

    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.ones([2 * size])
        parts = hvd.grouped_reducescatter([x, x], op=hvd.Sum)
        weights = [tf.constant([1.0, 2.0]), tf.constant([10.0, 20.0])]
        gradients = [
            v1.gradients(part, x, late(weight, 3 * i))[0]
            for i, (part, weight) in enumerate(zip(parts, weights))
        ]
        for _ in range(3):
            first, second = session.run(gradients)
            assert (first == np.tile([size, 2.0 * size], size)).all(), first
            assert (second == np.tile([10.0 * size, 20.0 * size], size)).all(), second
        # Several operations have the same name, or the same input.
        values = [late(tf.fill([2], float(i)), i) for i in range(4)]
        named = [hvd.allreduce(one, op=hvd.Sum, name="same") for one in values]
        gathered = [hvd.allgather(values[i]) for i in (0, 0, 3)]
        for _ in range(3):
            sums, wholes = session.run([named, gathered])
            assert [one[0] for one in sums] == [i * size for i in range(4)]
            assert [one.tolist() for one in wholes] == [[i] * 2 * size for i in (0.0, 0.0, 3.0)]
        plain = [herring.tensorflow.allreduce(one, "sum", name="same") for one in values]
        assert [one[0] for one in session.run(plain)] == [i * size for i in range(4)]
        # One averager is used several times in a graph.
        averager = herring.tensorflow.TensorAverager("in a graph", sparse="gather")
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), [size, 2])
        averages = [
            averager.average([late(values[i], i), rows], [values[i], tf.zeros([size, 2])])
            for i in range(4)
        ]
        for _ in range(3):
            found = session.run([[one, rows.indices] for one, rows in averages])
            assert [one[0] for one, _ in found] == [0.0, 1.0, 2.0, 3.0], found
            assert all(rows.tolist() == list(range(size)) for _, rows in found)
        wide = tf.ones([3])
        (back,) = v1.gradients(hvd.broadcast(wide, 0), wide)  # Only the root gets a gradient.
        assert (session.run(back) == (rank == 0)).all()
        v, w = (v1.get_variable(n, initializer=float(rank + 1), use_resource=True) for n in "vw")
        session.run(v1.global_variables_initializer())
        whole, (in_place,) = hvd.broadcast_variables([v], 1), hvd.broadcast_([w], 0)
        session.run(whole)
        assert session.run(in_place) == session.run(w) == 1 and session.run(v) == 2
        # Operations that have no defined order are refused.
        function = tf.function(hvd.allreduce)
        raises(ValueError, "inside a function", function, x)
        raises(ValueError, "inside a function", tf.function(herring.tensorflow.allreduce), x)
        v1.disable_control_flow_v2()
        try:
            for iterations in (1, 4):
                loop = lambda n=iterations: v1.while_loop(  # noqa: E731
                    lambda i, t: i < 8,
                    lambda i, t: (i + 1, t + hvd.allreduce(i, op=hvd.Max)),
                    [tf.constant(0), tf.constant(0)],
                    parallel_iterations=n,
                )
                if iterations == 1:
                    assert session.run(loop())[1] == 28
                else:
                    raises(ValueError, "parallel_iterations=1", loop)
        finally:
            v1.enable_control_flow_v2()


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    hvd.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](hvd.rank(), hvd.size())
        hvd.barrier()
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
