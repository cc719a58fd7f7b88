"""Cases of TensorFlow, which test_tensorflow.py runs on every rank."""

import gc
import os
import sys
import weakref

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import herring.tensorflow as herring
from herring.arrays.gradients import GradientRounds


def variables(seed=1):
    rng = np.random.default_rng(seed)
    return [
        tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((6, 400), (400,), ())
    ]


def loss_of(v, x):
    return tf.reduce_mean(tf.square(tf.reduce_mean(x @ v[0] + v[1], axis=1) * v[2] - 1.0))


def data(rank, size, rows=12):
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    return tf.constant(x), tf.constant(x[rank * rows // size : (rank + 1) * rows // size])


def close(left, right, tolerance=1e-5):
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right))


def same_everywhere(tensors):
    digests = herring.allgather_object([np.asarray(t).tobytes() for t in tensors])
    return all(d == digests[0] for d in digests)


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def test_tape_equals_one_process(rank, size):
    v = variables()
    everything, mine = data(rank, size)
    with tf.GradientTape() as plain:
        loss = loss_of(v, everything)
    expected = plain.gradient(loss, v)

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(v, x)
        return herring.DistributedGradientTape(tape).gradient(loss, v)

    graph = tf.function(step, reduce_retracing=False)
    for run in (step, graph, step):
        found = run(mine)
        assert same_everywhere(found) and close(found, expected)
    for rows in (1, 2, 3):  # Retraces the function, also on one rank only.
        graph(mine[: rows if rank == 0 else 1])
    assert close(graph(mine), expected)


def test_wire_dtypes(rank, size):
    """What does not travel in a step does so in later ones, so the mean of averages is right."""
    v = variables()
    everything, mine = data(rank, size)
    with tf.GradientTape() as plain:
        loss = loss_of(v, everything)
    expected = plain.gradient(loss, v)
    for wire, steps in ((("fp8", "bfloat16"), 4), (herring.TopK(0.1), 40)):

        def step(wire=wire):
            with tf.GradientTape() as tape:
                loss = loss_of(v, mine)
            return herring.DistributedGradientTape(tape, wire_dtype=wire).gradient(loss, v)

        for run in (step, tf.function(step)):
            averages = [run() for _ in range(steps)]
            assert all(same_everywhere(one) for one in averages), wire
            if steps > 4 and herring.num_nodes() > 1:
                sent = sum(np.count_nonzero(one) for one in averages[0])
                assert sent <= 2 * 255 < sum(tf.size(one).numpy() for one in v), sent
            for index, wanted in enumerate(expected):
                mean = sum(one[index].numpy() for one in averages) / steps
                error = np.linalg.norm(mean - wanted) / np.linalg.norm(wanted)
                assert error < (0.02 if steps == 4 else 0.4), (wire, index, error)


def test_loop_in_a_graph(rank, size):
    v, w = variables(), variables()
    everything, mine = data(rank, size)

    @tf.function
    def train(v, x, steps, average):
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                loss = loss_of(v, x)
            if average:
                tape = herring.DistributedGradientTape(tape)
            for one, gradient in zip(v, tape.gradient(loss, v)):
                one.assign_sub(0.05 * gradient)

    train(v, mine, tf.constant(20), True)
    train(w, everything, tf.constant(20), False)
    assert same_everywhere(v) and close(v, w, 1e-4)


def test_collectives_of_a_function_traced_again_by_one_rank(rank, size):
    @tf.function(reduce_retracing=False)
    def step(x):
        total = herring.allreduce(tf.reduce_sum(x), "sum") + herring.allreduce(x[0], "max")
        for _ in tf.range(2):
            total += herring.allreduce(x[0], "sum")
        return total + tf.cast(tf.shape(herring.allgather(x[:1]))[0], tf.float32)

    @tf.function
    def other(x):
        return herring.allreduce(x, "sum"), herring.allreduce(x, "max")

    for rows in (3, 4, 3, 5):
        mine = tf.ones([rows if rank == 0 else 3])
        assert step(mine).numpy() == rows + 3 * (size - 1) + 1 + 2 * size + size
        found = other(tf.ones([2]))
        assert found[0].numpy().tolist() == [size] * 2 and found[1].numpy().tolist() == [1.0] * 2


def test_tape_forms(rank, size):
    v = variables()
    _, mine = data(rank, size)
    with herring.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = loss_of(v, mine)
    first, second = tape.gradient(loss, v), tape.gradient(loss, {"b": v[1], "a": [v[0]]})
    assert isinstance(tape, tf.GradientTape) and set(second) == {"a", "b"}
    assert np.array_equal(first[0], second["a"][0]) and np.array_equal(first[1], second["b"])
    with tf.GradientTape() as tape:
        x = tf.constant([float(rank + 1)])
        tape.watch(x)
        y = 3.0 * x * x
    found = herring.DistributedGradientTape(tape, op="sum").gradient(y, x)
    assert np.allclose(found, 6.0 * size * (size + 1) / 2)


def jacobians(distributed, rank):
    """Compares the Jacobians of a distributed tape with this rank's own ones."""
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    for method in ("jacobian", "batch_jacobian"):
        for vectorized in (True, False):

            def step(method=method, vectorized=vectorized):
                with tf.GradientTape(persistent=True) as tape:
                    y = v * v * (1.0 + rank)
                found = []
                for one in (tape, distributed(tape)):
                    jacobian = getattr(one, method)
                    sources = v if method == "batch_jacobian" else [v]
                    found.append(jacobian(y, sources, experimental_use_pfor=vectorized))
                return found, distributed(tape).gradient(y, v)

            for (own, found), average in (step(), tf.function(step)()):
                assert np.array_equal(own, found) and np.any(own), (method, own, found)
                everyone = [2.0 * v.numpy() * (1.0 + r) for r in range(herring.size())]
                assert close([average], [np.mean(everyone, axis=0)])


def test_jacobians(rank, size):
    jacobians(herring.DistributedGradientTape, rank)


def test_missing_gradients(rank, size):
    v = [tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)]

    def step():
        with tf.GradientTape() as tape:
            loss = v[0] * 2.0 + (v[1] * 4.0 if rank == 0 else 0.0)
        return herring.DistributedGradientTape(tape).gradient(loss, v)

    for run in (step, tf.function(step)):
        a, b, c = run()
        assert a.numpy() == 2 and np.isclose(b.numpy(), 4.0 / size) and c is None

    def other():
        with tf.GradientTape() as tape:
            loss = v[0] * 2.0 + (v[2] if rank == 0 else 0.0)
        return herring.DistributedGradientTape(tape).gradient(loss, v)

    raises(herring.InvalidArgumentError, "rank 0 has a gradient", other)
    raises(Exception, "rank 0 has a gradient", tf.function(other))
    assert step()[0].numpy() == 2


def test_slices(rank, size):
    tables = [
        tf.Variable(tf.cast(tf.reshape(tf.range(15), (5, 3)), dtype))
        for dtype in (tf.float32, tf.bfloat16)
    ]
    for sparse, table in [(s, t) for s in ("densify", "gather") for t in tables]:

        def step(sparse=sparse, table=table):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [rank, 3]))
            tape = herring.DistributedGradientTape(tape, sparse=sparse)
            return tape.gradient(loss, table)

        expected = np.zeros((5, 3), np.float32)
        expected[:size] += 1 / size
        expected[3] += 1
        for run in (step, tf.function(step)):
            found = run()
            assert isinstance(found, tf.IndexedSlices) == (sparse == "gather")
            dense = tf.convert_to_tensor(found)
            assert dense.dtype == table.dtype
            assert np.allclose(tf.cast(dense, tf.float32), expected, atol=2e-3), found


def test_dtypes(rank, size):
    kinds = [tf.float16, tf.bfloat16, tf.float64, tf.complex64]
    v = [tf.Variable(tf.ones([3], kind)) for kind in kinds]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(tf.cast(tf.math.real(one * (rank + 1)), tf.float64)) for one in v]
            )
        return herring.DistributedGradientTape(tape).gradient(loss, v)

    for run in (step, tf.function(step)):
        for one, kind in zip(run(), kinds):
            assert one.dtype == kind and np.allclose(tf.cast(one, tf.complex64), (size + 1) / 2)


def test_functions(rank, size):
    def step():
        return (
            herring.allreduce(tf.fill([3], float(rank))),
            herring.allreduce(tf.constant(rank + 1), "product"),
            herring.broadcast(tf.constant([rank, 7]), root=1),
            herring.allgather(tf.fill([rank + 1, 2], rank)),
        )

    graph = tf.function(step)
    for run in (step, graph, graph):
        a, b, c, d = run()
        assert np.allclose(a, (size - 1) / 2) and b == np.prod(range(1, size + 1))
        assert c.numpy().tolist() == [1, 7] and d.shape == (size * (size + 1) // 2, 2)
    v = [*variables(seed=rank), tf.Variable(np.uint64(rank)), tf.Variable(rank == 1)]
    herring.broadcast_variables(v, root=1)
    assert same_everywhere(v) and close(v[:3], variables(seed=1), 0) and v[3].numpy() == 1
    wrong = tf.Variable(tf.zeros([rank + 1]))
    raises(herring.MismatchError, "variables", herring.broadcast_variables, [wrong])


def test_memory_of_results(rank, size):
    from herring.tensorflow import ops

    native = os.environ.get("HERRING_TENSORFLOW_IMPL") != "function"
    assert (ops._operations() is not None) == native and ops._asynchronous()
    seen = []

    def note(arrays):
        seen.append(arrays[0].ctypes.data)

    def double(arrays):
        note(arrays)
        arrays[0][...] *= 2

    def step(x, keeps):
        mine = x + 1.0
        with tf.control_dependencies([ops.read(note, [mine])]):
            (result,) = ops.update(double, [mine])
        return result, mine if keeps else None

    kept = ops._asynchronous
    for asynchronous in (lambda: False, kept):  # first without TensorFlow's callbacks
        ops._asynchronous = asynchronous
        call = tf.function(step)
        for x in (tf.ones([1000]), tf.ones([0, 3]), tf.ones([])):
            seen.clear()
            assert np.array_equal(call(x, False)[0], 2 * (x + 1))
            result, mine = call(x, True)
            assert np.array_equal(result, 2 * (x + 1)) and np.array_equal(mine, x + 1)
            if native and x.shape.num_elements():
                assert seen[0] == seen[1] and seen[2] != seen[3]
    for kind in (tf.bool, tf.int8, tf.uint8, tf.int16, tf.int32, tf.int64, tf.float16, tf.float64):
        total = tf.function(lambda x: herring.allreduce(x, "max"))(tf.ones([2, 3], kind))
        assert total.dtype == kind and total.shape == (2, 3) and np.all(tf.cast(total, tf.int32))

    v = variables()
    _, mine = data(rank, size)

    @tf.function
    def twice(x):
        with tf.GradientTape() as tape:
            loss = loss_of(v, x)
        own = tape.gradient(loss, v)
        with tf.GradientTape() as tape:
            loss = loss_of(v, x)
        averages = herring.DistributedGradientTape(tape).gradient(loss, v)
        again = herring.TensorAverager("again").average(own, v)
        return own, averages, again

    own, averages, again = twice(mine)
    assert close(averages, again, 0) and same_everywhere(averages)
    with tf.GradientTape() as tape:
        loss = loss_of(v, mine)
    assert close(own, tape.gradient(loss, v))  # Gradients used elsewhere were not overwritten.


def test_order_of_gradients(rank, size):
    from herring.arrays.gradients import GradientRounds, Source

    sources = [Source(f"v{i}", (1000 * i + 1,), "float32") for i in range(20)]
    rounds = GradientRounds(sources, range(20), name="order")
    random = np.random.default_rng(rank)
    for step in range(5):
        for i in random.permutation(20):
            rounds.put([int(i)], [np.full(sources[i].shape, rank + i + step, np.float32)])
        found = rounds.finish(["float32"] * 20)
        assert all(np.allclose(a, (size - 1) / 2 + i + step) for i, a in enumerate(found))
        assert all(a.ctypes.data % 64 == 0 for a in found)
    if rank == 0:
        rounds.put([0], [np.ones(1, np.float32)])  # Rank 0 then interrupts its step.
        raises(herring.HerringError, "gave up", rounds.put, [0], [np.ones(1, np.float32)])
    else:
        raises(herring.HerringError, "rank 0 gave up", rounds.finish, ["float32"] * 20)
    assert np.allclose(rounds.average([0], [np.ones(1, np.float32)])[0], 1)


def test_recorded_order(rank, size):
    """The plan has the gradients in the order in which rank 0's backward pass produces them."""
    shapes = [(2, 2), (3, 3), (4, 4), (5, 5)]

    def loss_of(v):
        # Rank 0 uses the variables in the order 2, 0, 3, and the other ranks in another order.
        order = (2, 0, 3) if rank == 0 else (3, 2, 0, 1)
        x = tf.constant(1.0)
        for i in order:
            x = tf.sin(x * tf.reduce_sum(v[i]))
        return x

    def gradients_of(v):
        with tf.GradientTape() as tape:
            loss = loss_of(v)
        return tape.gradient(loss, v)

    v = [tf.Variable(tf.fill(shape, 0.1)) for shape in shapes]
    for eager in (True, False):
        averager = herring.TensorAverager(f"recorded {eager}")

        def step(averager=averager):
            return averager.average(gradients_of(v), v)

        averages = (step if eager else tf.function(step))()
        (rounds,) = averager._rounds.values()
        assert rounds.order == [3, 0, 2, *([1] if size > 1 else [])], rounds.order
        assert [one.shape for one in averages] == shapes


def test_functions_outlive_their_python_code(rank, size):
    """A concrete function averages although the functions that it was traced from are gone."""
    v = variables()
    averager = herring.TensorAverager("outlives")

    def make():
        @tf.function
        def inner():
            return averager.average([tf.ones_like(one) * (rank + 1.0) for one in v], v)[0]

        @tf.function
        def outer(often):
            total = inner()
            for _ in tf.range(often):
                total += inner()
            return total + herring.allreduce(tf.ones_like(v[0]), "sum")

        inner()  # is traced on its own
        return outer.get_concrete_function(tf.TensorSpec([], tf.int32))

    function = make()
    gc.collect()
    assert np.allclose(function(tf.constant(2)), 3 * (size + 1) / 2 + size)
    alone = tf.function(lambda: herring.TensorAverager("made while traced").average(v, v)[0])
    assert close([alone()], [v[0]])  # All ranks have the same values.
    gc.collect()
    assert close([alone()], [v[0]])


def test_tapes_of_variables_that_are_gone_leave_no_memory(rank, size):
    def train():
        v = variables()

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = loss_of(v, data(rank, size)[1])
            return herring.DistributedGradientTape(tape).gradient(loss, v)

        step()
        return [weakref.ref(one) for one in gc.get_objects() if isinstance(one, GradientRounds)]

    before = {id(one) for one in gc.get_objects() if isinstance(one, GradientRounds)}
    found = train()
    assert any(id(one()) not in before for one in found) or size == 1
    gc.collect()
    after = [one for one in gc.get_objects() if isinstance(one, GradientRounds)]
    assert {id(one) for one in after} <= before, [one.name for one in after]


def test_refusals(rank, size):
    v = variables()
    _, mine = data(rank, size)

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(v, x)
        return herring.DistributedGradientTape(tape).gradient(loss, v)

    words = tf.constant(["a"])
    for call in (herring.allreduce, tf.function(herring.broadcast), herring.allgather):
        raises(herring.InvalidArgumentError, "holds no numbers", call, words)
    odd = tf.function(lambda: herring.allreduce(tf.constant(1, tf.uint32), "max"))
    raises(Exception, "InvalidArgumentError", odd)
    raises(Exception, "jit_compile=False", tf.function(step, jit_compile=True), mine)
    raises(Exception, "jit_compile=False", tf.function(tf.function(step), jit_compile=True), mine)
    shapes = tf.Variable(tf.zeros([2 + rank]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shapes)
    tape = herring.DistributedGradientTape(tape)
    raises(herring.MismatchError, "differs between ranks", tape.gradient, loss, [shapes])
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        raises(herring.InvalidArgumentError, "one process per device", step, mine)


def test_groups(rank, size):
    v = variables()
    _, mine = data(rank, size)
    alone = herring.new_group([rank])
    everyone = herring.new_group(range(size))
    results = []
    for group in (alone, everyone, None):
        with tf.GradientTape() as tape:
            loss = loss_of(v, mine)
        results.append(herring.DistributedGradientTape(tape, group=group).gradient(loss, v))
    with tf.GradientTape() as tape:
        loss = loss_of(v, mine)
    assert close(results[0], tape.gradient(loss, v), 0) and close(results[1], results[2])


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
