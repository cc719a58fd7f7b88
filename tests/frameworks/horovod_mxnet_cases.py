"""Cases of Horovod's API for MXNet, which test_horovod_mxnet.py runs on every rank."""

import sys
import warnings

import mxnet as mx
import numpy as np

import herring
import herring.horovod.mxnet as hvd
from mxnet_cases import batches, close, network, train, values

DTYPES = ("float32", "float64", "float16", "uint8", "int8", "int32", "int64")


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return error
    raise AssertionError(f"no {kind.__name__} for {text}")


def same_everywhere(arrays):
    digests = hvd.allgather_object([a.tobytes() for a in arrays])
    return all(d == digests[0] for d in digests)


def test_every_dtype(rank, size):
    total = size * (size + 1) // 2
    for dtype in DTYPES:
        average = (size + 1) / 2 if dtype.startswith("float") else (size + 1) // 2
        x = mx.nd.full((3, 2), rank + 1, dtype=dtype)
        found = hvd.allreduce(x, average=False)
        assert found.dtype == np.dtype(dtype) and (found.asnumpy() == total).all()
        assert (hvd.allreduce(x).asnumpy() == average).all() and (x.asnumpy() == rank + 1).all()
        scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        cut = 4 * sum((r + 1) // 2 for r in range(size))  # integers are cut before the sum
        assert (scaled.asnumpy() == (2 * total if dtype.startswith("float") else cut)).all()
        assert hvd.allreduce_(x, op=hvd.Max) is x and (x.asnumpy() == size).all()
        rows = mx.nd.full((rank + 1, 2), rank, dtype=dtype)
        every = np.concatenate([np.full((r + 1, 2), r) for r in range(size)])
        assert np.array_equal(hvd.allgather(rows).asnumpy(), every)
        one, other = hvd.grouped_allgather([rows, mx.nd.ones(1)])
        assert np.array_equal(one.asnumpy(), every) and other.shape == (size,)
        shared = mx.nd.full((2,), rank, dtype=dtype)
        assert (hvd.broadcast(shared, 0).asnumpy() == 0).all()
        assert hvd.broadcast_(shared, size - 1) is shared
        assert (shared.asnumpy() == size - 1).all()
        sent = mx.nd.full((total, 3), rank, dtype=dtype)
        came, splits = hvd.alltoall(sent, splits=mx.nd.arange(1, size + 1))
        expected = [np.full((rank + 1, 3), r) for r in range(size)]
        assert np.array_equal(came.asnumpy(), np.concatenate(expected))
        assert splits.dtype == np.int32 and (splits.asnumpy() == rank + 1).all()
        part = hvd.reducescatter(mx.nd.full((size + 1, 2), rank + 1, dtype=dtype), op=hvd.Sum)
        assert (part.asnumpy() == total).all() and len(part) == 1 + (rank == 0)
        ones = mx.nd.full((size, 2), rank + 1, dtype=dtype)
        one, other = hvd.grouped_reducescatter([ones, mx.nd.ones(size)])
        assert (one.asnumpy() == average).all() and other.asnumpy().tolist() == [1]
        one, other = hvd.grouped_allreduce([ones, mx.nd.full((1,), rank + 1)])
        assert (one.asnumpy() == average).all() and other.asnumpy() == (size + 1) / 2
        assert hvd.grouped_allreduce_([ones], op=hvd.Min)[0] is ones
        assert ones.dtype == np.dtype(dtype) and (ones.asnumpy() == 1).all()
    assert len(hvd.alltoall(mx.nd.ones(size))) == size
    found = hvd.allreduce(mx.np.full((2,), rank + 1.0))
    assert isinstance(found, mx.np.ndarray) and (found.asnumpy() == (size + 1) / 2).all()


def test_process_sets_and_objects(rank, size):
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.allgather_object(rank) == list(range(size))
    first = hvd.add_process_set([0])
    if rank == 0:
        assert hvd.allreduce(mx.nd.ones(2), average=False, process_set=first).asnumpy()[0] == 1
    else:
        raises(ValueError, "not in", hvd.allreduce, mx.nd.ones(2), process_set=first)
    hvd.barrier()
    net, alone = network(), network()
    options = {"learning_rate": 0.05}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, process_set=first)
    train(net, trainer, batches(rank, size), None)
    trainer = mx.gluon.Trainer(alone.collect_params(), "sgd", options, kvstore=None)
    train(alone, trainer, batches(rank, size), None)
    assert close(values(net), values(alone), 0)
    hvd.remove_process_set(first)


def test_trainer_equals_one_process(rank, size):
    options = {"learning_rate": 0.05, "momentum": 0.9}
    reference = network()
    trainer = mx.gluon.Trainer(reference.collect_params(), "sgd", options, kvstore=None)
    train(reference, trainer, batches(0, 1), None)
    for more, tolerance in (
        ({}, 1e-5),
        ({"compression": hvd.Compression.fp16, "prefix": "half"}, 1e-2),
        ({"gradient_predivide_factor": 2.0, "num_groups": 2}, 1e-5),
    ):
        net = network(seed=1 if rank == 0 else 5)
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, **more)
        train(net, trainer, batches(rank, size), None)
        assert same_everywhere(values(net)) and close(values(net), values(reference), tolerance)


def test_shapes_found_by_the_first_batch(rank, size):
    mx.random.seed(rank)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, activation="tanh"), mx.gluon.nn.Dense(1, in_units=8))
    net.initialize(mx.init.Normal(0.3))
    net.hybridize()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    train(net, trainer, batches(rank, size), None)
    assert same_everywhere(values(net))
    x = mx.nd.full((2,), rank)
    hvd.broadcast_parameters({"x": x}, root_rank=1, prefix="own")
    assert (x.asnumpy() == 1).all()
    raises(ValueError, "list", hvd.broadcast_parameters, [x])


def test_optimizer(rank, size):
    weights = [mx.nd.ones(3), mx.nd.ones(2)]
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5))
    states = [optimizer.create_state(i, weight) for i, weight in enumerate(weights)]
    gradient = mx.nd.full((3,), rank + 1)
    optimizer.update(0, weights[0], gradient, states[0])
    assert np.allclose(weights[0].asnumpy(), 1 - 0.5 * (size + 1) / 2)
    gradients = [mx.nd.full((3,), rank + 1), mx.nd.full((2,), rank + 1)]
    optimizer.update([0, 1], weights, gradients, states)
    assert np.allclose(weights[1].asnumpy(), 1 - 0.5 * (size + 1) / 2)
    optimizer.set_learning_rate(0.25)
    assert optimizer.learning_rate == 0.25
    raises(ValueError, "DistributedOptimizer", hvd.DistributedOptimizer, optimizer)
    net = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)
    assert any("wraps" in str(one.message) for one in caught)
    train(net, trainer, batches(rank, size), None)
    assert same_everywhere(values(net))


def test_joins(rank, size):
    net = network()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    data = list(batches(rank, size))
    train(net, trainer, data[: 1 + rank], None)
    if rank == size - 1 > 0:
        average = hvd.allreduce(mx.nd.ones(4))
        assert np.allclose(average.asnumpy(), 1 / size)
    assert hvd.join() == size - 1
    hvd.broadcast_parameters(net.collect_params(), root_rank=size - 1)
    train(net, trainer, data, None)
    assert same_everywhere(values(net))


def test_refusals(rank, size):
    raises(ValueError, "NDArray", hvd.allreduce, np.ones(2))
    raises(ValueError, "row_sparse", hvd.allreduce, mx.nd.ones((2, 2)).tostype("row_sparse"))
    wrong = mx.nd.ones(2 + (rank == 0))
    for _ in range(2):
        error = raises(hvd.HorovodInternalError, "", hvd.allreduce, wrong, name="wrong")
        assert isinstance(error, herring.MismatchError)
    shape, dtype = ((2, 6), "int32") if rank == 0 else ((2, 3, 2), "float64")
    for call, array in (
        (hvd.broadcast_, mx.nd.ones(shape)),
        (lambda x, root: hvd.allgather(x), mx.nd.ones(shape)),
        (lambda x, root: hvd.grouped_allgather([x]), mx.nd.ones(shape)),
        (lambda x, root: hvd.grouped_allreduce([x]), mx.nd.ones(2, dtype=dtype)),
    ):
        raises(herring.MismatchError, f"{array.dtype.__name__} [", call, array, 0)
    # Rows may differ in number, and a scalar is one row.
    found = hvd.grouped_allgather([mx.nd.ones((1 + rank, 2, 2))])[0]
    assert found.shape == (size * (size + 1) // 2, 2, 2)
    params = network().collect_params()
    make = hvd.DistributedTrainer
    raises(NotImplementedError, "Compression.fp16", make, params, "sgd", compression=int)
    assert hvd.allreduce(mx.nd.ones(1), name="wrong").asnumpy() == 1
    assert not hvd.nccl_built() and hvd.local_size() >= 1


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    hvd.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](hvd.rank(), hvd.size())
        hvd.barrier()
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
