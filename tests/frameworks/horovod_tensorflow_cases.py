"""Cases of Horovod's API for TensorFlow, which test_horovod_tensorflow.py runs."""

import functools
import math
import os
import pickle
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import herring
import herring.horovod.tensorflow as hvd
import herring.tensorflow

FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
DTYPES = (*FLOATS, tf.uint8, tf.int8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64)


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return error
    raise AssertionError(f"no {kind} for {text}")


def same_everywhere(tensors):
    digests = hvd.allgather_object([np.asarray(t).tobytes() for t in tensors])
    return all(d == digests[0] for d in digests)


def close(left, right, tolerance=1e-5):
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right))


def both(function):
    """Returns the results of one eager call of `function` and two calls as a graph."""
    graph = tf.function(function, reduce_retracing=False)
    return [function(), graph(), graph()]


def value(tensor):
    return np.asarray(tensor).astype(np.float64)


def test_every_dtype(rank, size):
    total = size * (size + 1) // 2
    for dtype in DTYPES:
        average = (size + 1) / 2 if dtype.is_floating else (size + 1) // 2

        def step(dtype=dtype):
            x = tf.cast(tf.fill([3, 2], rank + 1), dtype)
            rows = tf.cast(tf.fill([rank, 2], rank), dtype)
            ones = tf.cast(tf.fill([size, 2], rank + 1), dtype)
            odd = tf.cast(tf.fill([size + 1, 2], rank + 1), dtype)
            sent = tf.cast(tf.fill([total, 3], rank), dtype)
            return (
                hvd.allreduce(x, op=hvd.Sum),
                hvd.allreduce(x),
                hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
                hvd.allreduce(x, op=hvd.Max),
                hvd.allgather(rows),
                hvd.broadcast(x, root_rank=size - 1),
                hvd.alltoall(sent, splits=tf.range(1, size + 1)),
                hvd.reducescatter(odd, op=hvd.Sum),
                hvd.grouped_allreduce([ones, tf.constant(rank + 1.0)]),
                hvd.grouped_allgather([rows, tf.ones([1])]),
                hvd.grouped_reducescatter([ones, tf.ones([size])]),
            )

        for found in both(step):
            (summed, mean, scaled, most, every, given, (came, splits), part) = found[:8]
            group, wholes, parts = found[8:]
            assert all(one.dtype == dtype for one in (summed, mean, scaled, most, every, part))
            assert (value(summed) == total).all() and (value(mean) == average).all()
            cut = 4 * sum((r + 1) // 2 for r in range(size))  # integers are cut first
            assert (value(scaled) == (2 * total if dtype.is_floating else cut)).all()
            assert (value(most) == size).all()
            expected = np.concatenate([np.full((r, 2), r) for r in range(size)])
            assert np.array_equal(value(every), expected)
            assert (value(given) == size).all()
            assert splits.dtype == tf.int32 and (splits.numpy() == rank + 1).all()
            rows = [np.full((rank + 1, 3), r) for r in range(size)]
            assert np.array_equal(value(came), np.concatenate(rows))
            assert (value(part) == total).all() and len(part) == 1 + (rank == 0)
            assert group[0].dtype == dtype and (value(group[0]) == average).all()
            assert group[1] == (size + 1) / 2
            assert np.array_equal(value(wholes[0]), expected) and len(wholes[1]) == size
            assert parts[0].dtype == dtype and (value(parts[0]) == average).all()


def test_shapes_and_options(rank, size):
    def step():
        return (
            hvd.allreduce(tf.zeros([0, 3])),
            hvd.allgather(tf.zeros([2, 0])),
            hvd.allgather(tf.constant(1.0)),
            hvd.alltoall(tf.zeros([size, 0]), splits=[1] * size),
            hvd.allgather(tf.constant([[True], [rank == 0]])),
            hvd.broadcast(tf.constant(1 + 2j * rank, tf.complex128), 1),
            hvd.allreduce(tf.fill([2], 1.5), compression=hvd.Compression.fp16),
            hvd.allreduce(tf.constant(rank), average=False),
            hvd.size_op() + 10 * hvd.rank_op() + 100 * hvd.local_size_op(),
            hvd.process_set_included_op(),
        )

    for found in both(step):
        assert found[0].shape == (0, 3) and found[1].shape == (2 * size, 0)
        assert found[2].shape == (size,)
        assert found[3][0].shape == (size, 0) and (found[3][1].numpy() == 1).all()
        assert found[4].shape == (2 * size, 1) and found[4].numpy().sum() == size + 1
        assert found[5].numpy() == 1 + 2j
        assert found[6].dtype == tf.float32 and (found[6].numpy() == 1.5).all()
        assert found[7].numpy() == size * (size - 1) // 2
        assert found[8].numpy() == size + 10 * rank + 100 * hvd.local_size()
        assert found[9].numpy() == 1
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == []
    assert hvd.allreduce(tf.constant([200], tf.uint8)).numpy() == 200  # The sum does not overflow.
    assert not hvd.mpi_built() and hvd.nccl_built() == 0 and hvd.is_homogeneous()
    raises(ValueError, "hvd.Average", hvd.allreduce, tf.ones(1), average=True, op=hvd.Sum)
    for text in ("broadcast_variables", "TensorFlow 2"):
        raises(NotImplementedError, text, hvd.broadcast_global_variables, 0)
        raises(NotImplementedError, text, hvd.BroadcastGlobalVariablesHook, 0)


def test_elastic_state(rank, size):
    """The state of an elastic program, in a job that is not elastic."""
    variables = [tf.Variable([1.0 + rank, 2.0]), tf.Variable(rank)]
    state = hvd.elastic.TensorFlowState(variables, step=0, seen=[])

    @hvd.elastic.run
    def train(state):
        assert [one.numpy().tolist() for one in state.variables] == [[1, 2], 0]
        variables[0].assign_add([1.0, 1.0])
        state.step = 1
        state.commit()
        variables[0].assign_add([1.0, 1.0])
        variables[1].assign(9)
        state.step, state.seen = 2, [1]

    train(state)
    state.restore()
    assert [one.numpy().tolist() for one in variables] == [[2, 3], 0]
    assert (state.step, state.seen) == (1, [])
    refuses = functools.partial(raises, NotImplementedError)
    refuses("global variables", hvd.elastic.TensorFlowState)
    refuses("session is", hvd.elastic.TensorFlowState, variables, session=object())
    raises(ValueError, "empty", hvd.elastic.TensorFlowState, [])
    with tf.Graph().as_default():
        refuses("sessions of TensorFlow 1", hvd.elastic.TensorFlowState, variables)
        refuses("sessions of TensorFlow 1", hvd.elastic.TensorFlowKerasState, object())


def test_slices(rank, size):
    def step():
        slices = tf.IndexedSlices(tf.fill([rank + 1, 2], 1.0), tf.range(rank + 1), [5, 2])
        return [tf.convert_to_tensor(hvd.allreduce(slices, op=op)) for op in (hvd.Sum, hvd.Average)]

    expected = np.zeros((5, 2))
    for r in range(size):
        expected[: r + 1] += 1
    for summed, mean in both(step):
        assert np.allclose(summed, expected) and np.allclose(mean, expected / size)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), [5, 2])
    raises(NotImplementedError, "hvd.Sum", hvd.allreduce, slices, op=hvd.Max)
    raises(NotImplementedError, "hvd.Sum", hvd.grouped_allreduce, [slices], op=hvd.Max)

    def grouped():
        whole = tf.IndexedSlices(tf.fill([1, 2], rank + 1), tf.constant([rank]), [size, 2])
        mixed = hvd.grouped_allreduce([whole, tf.fill([3], 1.0 + rank), whole], op=hvd.Sum)
        (mean,) = hvd.grouped_allreduce([whole])
        scaled = hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.5)
        return [tf.convert_to_tensor(one) for one in (*mixed, mean, scaled)]

    ranks = np.arange(1, size + 1)[:, None].repeat(2, axis=1)
    for first, dense, last, mean, scaled in both(grouped):
        assert np.array_equal(first, ranks) and np.array_equal(last, ranks)
        assert (dense.numpy() == ranks.sum() / 2).all()
        assert np.allclose(mean, ranks / size) and np.array_equal(scaled, ranks // 2)


def test_slices_that_are_to_be_reduced_in_different_ways(rank, size):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), [size, 2])
    differ = functools.partial(raises, herring.MismatchError, "disagree")
    for factor in ("prescale_factor", "postscale_factor"):
        differ(hvd.allreduce, slices, **{factor: 1.0 + rank})
        differ(hvd.grouped_allreduce, [slices, slices], **{factor: 2.0 if rank else 3.0})
        raises(ValueError, f"{factor} is nan", hvd.allreduce, slices, **{factor: math.nan})
    differ(hvd.allreduce, slices, op=hvd.Sum if rank else hvd.Average)
    traced = tf.function(lambda: tf.convert_to_tensor(hvd.allreduce(slices, prescale_factor=rank)))
    raises(tf.errors.OpError, "disagree", traced)
    assert hvd.allreduce(slices, prescale_factor=2.0, op=hvd.Sum).values.numpy().sum() == 4 * size


def test_integers_are_cut_before_the_sum(rank, size):
    def step():
        x = tf.constant([3, -3, 4])
        options = {"op": hvd.Sum, "prescale_factor": 0.5}
        rows = tf.repeat(x, size)
        half = tf.constant([3.0])
        return (
            hvd.allreduce(x, **options),
            *hvd.grouped_allreduce([x, half], **options),
            hvd.reducescatter(rows, **options),
            *hvd.grouped_reducescatter([rows, tf.repeat(half, size)], **options),
        )

    expected = [size, -size, 2 * size]
    for whole, listed, half, part, grouped, part_of_half in both(step):
        assert whole.numpy().tolist() == listed.numpy().tolist() == expected
        assert half.numpy() == 1.5 * size and part_of_half.numpy() == 1.5 * size
        mine = np.repeat(expected, size)[3 * rank : 3 * rank + 3]
        assert part.numpy().tolist() == grouped.numpy().tolist() == mine.tolist()


def test_errors_are_those_of_tensorflow_too(rank, size):
    mismatch = (tf.errors.FailedPreconditionError, hvd.HorovodInternalError, herring.MismatchError)
    refusal = (tf.errors.InvalidArgumentError, herring.InvalidArgumentError, ValueError)
    for kind in mismatch:
        raises(kind, "disagree", hvd.allreduce, tf.ones([rank + 1]))
        raises(kind, "disagree", hvd.allgather, tf.ones([1, rank + 1]))
        raises(kind, "disagree", hvd.broadcast, tf.ones([1]), rank)
        raises(kind, "disagree", hvd.grouped_allreduce, [tf.ones([1]), tf.ones([rank + 1])])
    for kind in refusal:
        error = raises(kind, "split evenly", hvd.alltoall, tf.ones([size + 1, 2]))
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, kind) and str(again) == str(error)
    assert hvd.allreduce(tf.ones([1])).numpy() == 1


def test_adasum(rank, size):
    if size & (size - 1):
        raises(ValueError, "power of two", hvd.allreduce, tf.ones(1), op=hvd.Adasum)
        return
    vectors = [np.random.default_rng(r).normal(size=7) for r in range(size)]
    level = vectors
    while len(level) > 1:
        level = [
            (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
            for a, b in zip(level[::2], level[1::2])
        ]

    def step():
        mine = tf.constant(vectors[rank])
        one, other = hvd.grouped_allreduce([tf.cast(mine, tf.float32), mine], op=hvd.Adasum)
        return hvd.allreduce(mine, op=hvd.Adasum), one, other

    for found in both(step):
        assert close(found, [level[0]] * 3) and found[1].dtype == tf.float32


def test_gradients(rank, size):
    mean = (size + 1) / 2
    weighted = {
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum) * (rank + 1),
        "average": lambda x: hvd.allreduce(x) * (rank + 1),
        "gathered": lambda x: hvd.allgather(x) * (rank + 1),
        "group": lambda x: tf.add_n(hvd.grouped_allreduce([x, x])) * (rank + 1),
        "wholes": lambda x: tf.add_n(hvd.grouped_allgather([x, x])) * (rank + 1),
    }
    factors = {"sum": size * mean, "group": 2 * mean, "wholes": 2 * mean}

    def gradient_of(function, *shape):
        x = tf.ones(shape)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    for kind, function in weighted.items():
        rows = rank + 1 if kind in ("gathered", "wholes") else 2
        for found in both(lambda f=function, r=rows: gradient_of(f, r, 3)):
            assert np.allclose(found, factors.get(kind, mean)), (kind, found)
            assert found.shape == (rows, 3)
    for found in both(lambda: gradient_of(lambda x: hvd.broadcast(x, 0), 3)):
        assert (found.numpy() == (rank == 0)).all()

    def exchanged(x):
        return hvd.alltoall(x, splits=[2] * size)[0] * (rank + 1)

    for found in both(lambda: gradient_of(exchanged, 2 * size, 2)):
        assert np.array_equal(found[:, 0], np.arange(1.0, size + 1).repeat(2))
    scattered = lambda x: hvd.reducescatter(x, op=hvd.Sum)  # noqa: E731
    group = lambda x: hvd.grouped_reducescatter([x, x])[0]  # noqa: E731
    for function, expected in ((scattered, size), (group, 1)):
        for found in both(lambda f=function: gradient_of(f, size, 2)):
            assert (found.numpy() == expected).all()
    raises(ValueError, "no gradient", gradient_of, lambda x: hvd.allreduce(x, op=hvd.Max), 2)


def test_any_order_in_a_graph(rank, size):
    x = tf.Variable(1.0)
    numbers = list(range(20))  # more calls than TensorFlow has threads

    @tf.function
    def step():
        order = numbers if rank % 2 else numbers[::-1]
        found = {i: hvd.allreduce(x * (rank + i), name=f"t{i}", op=hvd.Sum) for i in order}
        hvd.allreduce(x, name="nobody asks for it")
        return tf.stack([found[i] for i in numbers])

    for _ in range(50):
        assert np.allclose(step(), [size * i + size * (size - 1) / 2 for i in numbers])

    @tf.function
    def effects():
        x.assign(hvd.allreduce(x + rank, op=hvd.Max))
        tf.debugging.assert_greater(x, 0.0)
        y = hvd.allreduce(x * 2.0)
        x.assign_add(y - y)
        return hvd.allgather(tf.reshape(x + y, [1])), hvd.allreduce(x)

    for _ in range(3):
        x.assign(1.0)
        gathered, mean = effects()
        assert np.allclose(gathered, 3.0 * size) and np.isclose(mean, size)

    @tf.function
    def loop(n):
        total = tf.constant(0.0)
        for i in tf.range(n):
            total += hvd.allreduce(tf.cast(i, tf.float32) + rank, op=hvd.Sum)
        return total

    for n in (3, 10):
        assert loop(tf.constant(n)).numpy() == size * n * (n - 1) / 2 + n * size * (size - 1) / 2


def test_a_rank_traces_again(rank, size):
    @tf.function
    def step(rows):
        return hvd.allreduce(tf.reduce_sum(rows)), hvd.allreduce(tf.ones([]), op=hvd.Sum)

    for rows in (1, 2, 3):
        total, count = step(tf.ones([rows if rank == 0 else 1]))
        assert np.isclose(total, (rows + size - 1) / size) and count.numpy() == size


def test_process_sets(rank, size):
    first = hvd.add_process_set([0])
    everyone = hvd.ProcessSet(range(size))
    raises(ValueError, "already", hvd.add_process_set, everyone)
    if rank == 0:
        for found in both(lambda: hvd.allreduce(tf.constant(3.0), process_set=first)):
            assert found.numpy() == 3
        for found in both(lambda: hvd.alltoall(tf.ones([3, 2, 2]), [3], process_set=first)):
            assert found[0].shape == (3, 2, 2) and found[1].numpy().tolist() == [3]
        gathered = hvd.allgather(tf.ones([2]), process_set=first)
        assert len(gathered) == 2
    else:
        raises(ValueError, "not in", hvd.allreduce, tf.ones(1), process_set=first)
    number = first.process_set_id
    assert hvd.size_op(number).numpy() == 1
    assert hvd.process_set_included_op(number).numpy() == (rank == 0)
    v = tf.Variable(float(rank + 1))
    with tf.GradientTape() as tape:
        loss = v * (rank + 1)
    tape = hvd.DistributedGradientTape(tape, process_set=first)
    assert tape.gradient(loss, [v])[0].numpy() == rank + 1
    hvd.remove_process_set(first)
    raises(Exception, "no registered process set", hvd.size_op, number)
    raises(ValueError, "not registered", hvd.allreduce, tf.ones(1), process_set=first)


def test_mismatches(rank, size):
    first = rank == 0
    variable = tf.Variable(tf.ones([2 + first]))
    calls = [
        lambda: hvd.allreduce(tf.ones([2 + first]), name="m"),
        lambda: hvd.allreduce(tf.ones([2]), op=hvd.Sum if first else hvd.Max, name="m"),
        lambda: hvd.allgather(tf.ones([2, 1 + first]), name="m"),
        lambda: hvd.allgather(tf.ones([2], tf.float32 if first else tf.int32), name="m"),
        lambda: hvd.broadcast(tf.ones([2 + first]), 0, name="m"),
        lambda: hvd.reducescatter(tf.ones([size + first]), name="m"),
        lambda: hvd.grouped_allreduce([tf.ones([2])] * (1 + first), name="m"),
        lambda: hvd.broadcast_variables([variable], 0),
        # On the host, the tensors of these calls have the same bytes, rows or wider dtype.
        lambda: hvd.broadcast(tf.ones([2], tf.bfloat16 if first else tf.uint16), 0, name="m"),
        lambda: hvd.broadcast(tf.ones([2, 6] if first else [2, 3, 2]), 0, name="m"),
        lambda: hvd.broadcast(tf.ones([] if first else [1]), 0, name="m"),
        lambda: hvd.allreduce(tf.ones([2], tf.bfloat16 if first else tf.float32), name="m"),
        lambda: hvd.allgather(tf.ones([2, 6] if first else [2, 3, 2]), name="m"),
        lambda: hvd.grouped_allreduce(
            [tf.ones([1]), tf.ones([2], tf.int32 if first else tf.float64)], name="m"
        ),
        lambda: hvd.grouped_allgather(
            [tf.ones([2], tf.complex64 if first else tf.uint64)], name="m"
        ),
        lambda: hvd.grouped_allgather([tf.ones([2, 6] if first else [2, 3, 2])], name="m"),
        lambda: hvd.grouped_reducescatter(
            [tf.ones([size], tf.bfloat16 if first else tf.float32)], name="m"
        ),
    ]
    refusals = [
        lambda: hvd.allreduce(tf.ones([2], tf.complex64 if first else tf.float32), name="m"),
        lambda: hvd.alltoall(tf.ones([size]), splits=[2 if first else 1] * size, name="m"),
        lambda: hvd.allreduce(tf.ones([2]), op=9 if first else hvd.Sum, name="m"),
        lambda: hvd.reducescatter(tf.ones([]) if first else tf.ones([size]), name="m"),
        lambda: hvd.broadcast(tf.constant("x") if first else tf.ones([]), 0, name="m"),
    ]
    words = "strings and objects are sent by broadcast_object"
    for value in (tf.constant("x"), tf.constant(["x"])):
        raises(ValueError, words, hvd.broadcast, value, 0)
        raises(ValueError, words, hvd.allgather, value)
        raises(tf.errors.OpError, words, tf.function(hvd.broadcast), value, 0)
        raises(ValueError, words, hvd.broadcast_variables, [tf.Variable(value)], 0)
    for call in calls:
        error = raises(hvd.HorovodInternalError, "", call)
        assert isinstance(error, herring.MismatchError), error
        raises(tf.errors.OpError, "", tf.function(call))
    for call in refusals:
        raises((hvd.HorovodInternalError, ValueError), "", call)
        raises(tf.errors.OpError, "", tf.function(call))
    assert hvd.allreduce(tf.ones([1]), name="m").numpy() == 1
    assert tf.function(lambda: hvd.allreduce(tf.ones([1]), name="m"))().numpy() == 1
    raises(
        Exception,
        "jit_compile=False",
        tf.function(lambda: hvd.allreduce(tf.ones([1])), jit_compile=True),
    )


def test_arguments_by_position(rank, size):
    """Arguments have the places that they have in Horovod."""
    whole, plain = tf.ones([size]), hvd.Compression.none
    everyone = hvd.global_process_set
    assert hvd.reducescatter(whole, "", plain, hvd.Sum, "n", everyone, True, 2.0, 3.0) == 6 * size
    assert hvd.grouped_reducescatter([whole], "", plain, hvd.Sum, everyone, 2.0)[0] == 2 * size
    choose = hvd.handle_average_backwards_compatibility
    assert [choose(hvd.Max, None), choose(None, False)] == [hvd.Max, hvd.Sum]
    raises(ValueError, "op only", choose, hvd.Max, True)
    assert [n for n in range(6) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4]
    v, w = tf.Variable(1.0), tf.Variable(2.0)
    references = hvd.vars_to_refs([v, [w]])
    assert hash(references) and hvd.refs_to_vars(references)[1][0] is w
    with tf.GradientTape(persistent=True) as tape:
        loss = v * (rank + 1.0) + w * (rank + 1.0)
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    tape.register_local_source(w)
    local, others = tape.get_local_and_global_gradients(loss, [v, w])
    assert [source is w and gradient == rank + 1 for source, gradient in local] == [True]
    assert [source is v and gradient == (size + 1) / 2 for source, gradient in others] == [True]
    for arguments, options in (((None, True), {}), ((), {"use_generic_names": True})):
        assert tape.gradient(loss, [v], *arguments, **options)[0] == (size + 1) / 2


def test_variables_and_objects(rank, size):
    def fresh():
        return [tf.Variable(tf.fill([3], float(rank))), tf.Variable(rank), tf.Variable(rank == 1)]

    eager, traced = fresh(), fresh()
    hvd.broadcast_variables(eager, root_rank=1)

    @tf.function
    def step(first):
        if first:
            hvd.broadcast_variables(traced, root_rank=1)
        return traced[0] + 1.0

    assert (step(True).numpy() == 2).all() and (step(False).numpy() == 2).all()
    for v in (eager, traced, hvd.broadcast_(fresh(), 1, name="named")):
        assert (v[0].numpy() == 1).all() and v[1].numpy() == 1 and v[2].numpy()
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=1)(rank) == 1
    assert hvd.allgather_object(rank) == list(range(size))
    raises(ValueError, "session", hvd.broadcast_object, 1, session=3)
    hvd.barrier()


def test_timelines(rank, size):
    path = os.path.join(tempfile.gettempdir(), f"herring-timeline-{os.getpid()}.json")
    hvd.start_timeline(path)
    hvd.allreduce(tf.ones([2]), name="seen")
    hvd.stop_timeline()
    if rank == 0:
        with open(path) as file:
            assert "horovod.allreduce.seen" in file.read()
        os.unlink(path)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    hvd.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](hvd.rank(), hvd.size())
        hvd.barrier()
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
