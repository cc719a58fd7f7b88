"""Cases of training over Horovod's API for TensorFlow, which test_horovod_tensorflow.py runs."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import herring.horovod.tensorflow as hvd
from horovod_tensorflow_cases import both, close, raises, same_everywhere
from tensorflow_cases import jacobians


def data(rank, size, rows=12):
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    return tf.constant(x), tf.constant(x[rank * rows // size : (rank + 1) * rows // size])


def variables(seed=1):
    rng = np.random.default_rng(seed)
    return [
        tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((6, 40), (40,), ())
    ]


def loss_of(v, x):
    return tf.reduce_mean(tf.square(tf.reduce_mean(x @ v[0] + v[1], axis=1) * v[2] - 1.0))


class Own(hvd.Compression.fp16):
    """A compressor that the user defines."""


def test_tapes(rank, size):
    v = variables()
    everything, mine = data(rank, size)
    with tf.GradientTape() as tape:
        loss = loss_of(v, everything)
    expected = tape.gradient(loss, v)
    for options in (
        {},
        {"op": hvd.Sum},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.fp8},
        {"compression": Own},
        {"gradient_predivide_factor": 2.0, "num_groups": 1},
        {"op": hvd.Adasum},
    ):
        if options.get("op") == hvd.Adasum and size & (size - 1):
            continue

        def step(options=options):
            with tf.GradientTape() as tape:
                loss = loss_of(v, mine)
            return hvd.DistributedGradientTape(tape, **options).gradient(loss, v)

        for found in both(step):
            assert same_everywhere(found), options
            if options.get("op") == hvd.Adasum:
                continue
            scale = size if options.get("op") == hvd.Sum else 1
            tolerance = 1e-2 if "compression" in options else 1e-5
            tolerance = 0.1 if options.get("compression") is hvd.Compression.fp8 else tolerance
            assert close([g / scale for g in found], expected, tolerance), options
    make = hvd.DistributedGradientTape
    raises(ValueError, "op is 4", make, tf.GradientTape(), op=hvd.Max)
    raises(
        ValueError, "must be 1", make, tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0
    )
    raises(ValueError, "groups is -1", make, tf.GradientTape(), groups=-1)


def test_jacobians(rank, size):
    jacobians(hvd.DistributedGradientTape, rank)


def test_sparse_and_local_gradients(rank, size):
    table = tf.Variable(np.arange(15, dtype=np.float32).reshape(5, 3))
    local = tf.Variable(2.0)
    expected = np.zeros((5, 3), np.float32)
    expected[:size] += 1 / size
    expected[3] += 1
    for dense in (False, True):
        for compression in (hvd.Compression.none, Own):
            for scales in (False, True):

                def step(dense=dense, compression=compression, scales=scales):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(tf.gather(table, [rank, 3])) + local * (rank + 1)
                    tape = hvd.DistributedGradientTape(
                        tape,
                        sparse_as_dense=dense,
                        compression=compression,
                        scale_local_gradients=scales,
                    )
                    tape.register_local_source(local)
                    return tape.gradient(loss, [table, local])

                for found, own in both(step):
                    assert isinstance(found, tf.IndexedSlices) != dense
                    assert np.allclose(tf.convert_to_tensor(found), expected, atol=1e-3), found
                    assert np.isclose(own, (rank + 1) / (size if scales else 1))
    layers = [keras.layers.Dense(2), keras.layers.Dense(1)]
    for layer in layers:
        layer.build((None, 2))
        hvd.broadcast_variables(layer.variables, 0)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(layers[1](layers[0](tf.ones([1, 2]) * (rank + 1.0))))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[1])
    sources = [v for layer in layers for v in layer.trainable_variables]
    found = tape.gradient(y, sources)
    everyone = hvd.allgather_object([g.numpy().tolist() for g in found])
    assert all(one[:2] == everyone[0][:2] for one in everyone) and everyone[0][2] != everyone[1][2]
    raises(ValueError, "local_layers", hvd.PartialDistributedGradientTape, tape, local_layers=[3])


def optimized(optimizer, x, steps, passes, graph=True):
    v = variables()

    def step(part):
        with tf.GradientTape() as tape:
            loss = loss_of(v, part)
        optimizer.apply_gradients(zip(tape.gradient(loss, v), v))

    run = tf.function(step) if graph else step
    for i in range(steps * passes):
        run(tf.roll(x, i, 1))
    return v


def test_optimizers(rank, size):
    everything, mine = data(rank, size)
    sgd = keras.optimizers.SGD
    for options in (
        {},
        {"compression": hvd.Compression.fp16},
        {"compression": Own},
        {"backward_passes_per_step": 2},
        {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    ):
        passes = options.get("backward_passes_per_step", 1)
        for graph in (True, False):
            optimizer = hvd.DistributedOptimizer(sgd(0.02, momentum=0.9), **options)
            assert isinstance(optimizer, sgd) and type(optimizer).__name__ == "SGD"
            found = optimized(optimizer, mine, 3, passes, graph)
            assert optimizer.iterations.numpy() == 3 * passes
            assert same_everywhere(found), options
            alone = sgd(0.02, momentum=0.9, gradient_accumulation_steps=None)
            reference = variables()
            for i in range(3):
                total = [tf.zeros_like(v) for v in reference]
                for j in range(passes):
                    with tf.GradientTape() as tape:
                        loss = loss_of(reference, tf.roll(everything, i * passes + j, 1))
                    part = tape.gradient(loss, reference)
                    total = [a + b for a, b in zip(total, part)]
                if options.get("average_aggregated_gradients"):
                    total = [a / passes for a in total]
                alone.apply_gradients(zip(total, reference))
            tolerance = 1e-2 if "compression" in options else 1e-5
            assert close(found, reference, tolerance), options
    if not size & (size - 1):
        optimizer = hvd.DistributedOptimizer(sgd(0.02), op=hvd.Adasum)
        assert same_everywhere(optimized(optimizer, mine, 2, 1))
    table = tf.Variable(tf.ones([3, 2]))
    optimizer = hvd.DistributedOptimizer(sgd(0.02), op=hvd.Adasum)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), [3, 2])
    raises(NotImplementedError, "tf.IndexedSlices", optimizer.apply, [slices], [table])
    make = hvd.DistributedOptimizer
    raises(ValueError, "Keras 3", make, 3)
    raises(ValueError, "already", make, make(sgd(0.1)))
    raises(ValueError, "backward_passes_per_step is 0", make, sgd(0.1), backward_passes_per_step=0)
    old = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    raises(NotImplementedError, "TensorFlow 1", make, old)


def test_joins(rank, size):
    v, w = variables(), variables()
    _, mine = data(rank, size)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(v, x)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, v)
        for one, gradient in zip(v, gradients):
            one.assign_sub(0.05 * gradient)

    for i in range(1 + rank):
        step(mine)
        there = [r for r in range(size) if i < 1 + r]
        count = hvd.allreduce(tf.ones([1]), op=hvd.Sum)
        assert count.numpy() == len(there)
        average = hvd.allreduce(tf.ones([300_000]))
        assert np.allclose(average, len(there) / size)
    assert hvd.join() == size - 1
    hvd.broadcast_variables(v, size - 1)
    for i in range(size):
        there = [r for r in range(size) if i < 1 + r]
        total = [tf.zeros_like(one) for one in w]
        for r in there:
            with tf.GradientTape() as tape:
                loss = loss_of(w, data(r, size)[1])
            total = [a + b for a, b in zip(total, tape.gradient(loss, w))]
        for one, gradient in zip(w, total):
            one.assign_sub(0.05 * gradient / size)
    assert close(v, w)
    step(mine)
    assert same_everywhere(v)


def test_sync_batch_norm(rank, size):
    rows = [r + 2 for r in range(size)]
    x = np.random.default_rng(3).normal(size=(sum(rows), 4)).astype(np.float32)
    first = sum(rows[:rank])
    mine = tf.constant(x[first : first + rows[rank]])
    layer, alone = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    weights = tf.constant(np.random.default_rng(4).normal(size=x.shape).astype(np.float32))

    def run(layer, x, weights):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) * weights)
        return tape.gradient(loss, x)

    everything = tf.constant(x)
    layer.build(x.shape)
    alone.build(x.shape)
    expected = run(alone, everything, weights)[first : first + rows[rank]]
    part = weights[first : first + rows[rank]]
    found = run(layer, mine, part)
    assert np.allclose(found, expected, atol=1e-4)
    assert close([layer.moving_mean], [alone.moving_mean])
    traced = tf.function(lambda: run(layer, mine, part))()
    assert np.allclose(traced, expected, atol=1e-4)
    loaded = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert isinstance(loaded, hvd.SyncBatchNormalization)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    hvd.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](hvd.rank(), hvd.size())
        hvd.barrier()
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
