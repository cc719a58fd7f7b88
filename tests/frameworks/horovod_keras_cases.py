"""Cases of Horovod's API for Keras on any backend, which test_horovod_keras.py runs."""

import copy
import os
import pickle
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import herring.horovod.keras as hvd
import herring.keras
from herring.keras import is_distributed
from keras_cases import close, data, mine, network, trained, values

TENSORFLOW = keras.backend.backend() == "tensorflow"
SGD = keras.optimizers.SGD


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def same_everywhere(arrays):
    digests = hvd.allgather_object([np.asarray(a).tobytes() for a in arrays])
    return all(d == digests[0] for d in digests)


def test_equals_one_process(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for kind, options in [
        (SGD, {"learning_rate": 0.1, "momentum": 0.9}),
        (keras.optimizers.Adam, {"learning_rate": 0.01, "clipnorm": 0.5}),
    ]:
        reference, _ = trained(kind(**options), x, y, 24)
        optimizer = hvd.DistributedOptimizer(kind(**options))
        model = network(seed=rank)
        start = [hvd.callbacks.BroadcastGlobalVariablesCallback(1 % size)]
        first = network(seed=1)
        if rank == 1 % size:
            model.set_weights(first.get_weights())
        model, _ = trained(optimizer, *part, model=model, callbacks=start)
        assert type(optimizer).__name__ == kind.__name__ and isinstance(optimizer, kind)
        assert same_everywhere(values(model)), kind
        assert close(values(model), values(reference)), kind


def test_passes(rank, size):
    x, y = data()
    part = mine(x, y, 12, rank, size)
    for divides in (True, False):
        for eager in (False, True) if TENSORFLOW else (False,):
            factor = 1 if divides else 2
            reference, _ = trained(SGD(0.1 * factor), x, y, 24)
            optimizer = hvd.DistributedOptimizer(
                SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=divides
            )
            found, _ = trained(optimizer, *part, run_eagerly=eager)
            assert same_everywhere(values(found))
            assert close(values(found), values(reference), 1e-4)
            # On TensorFlow, `iterations` counts passes, as Horovod does; Keras itself counts steps.
            assert int(optimizer.iterations) == (8 if TENSORFLOW else 4)
    if TENSORFLOW:
        scaled = keras.optimizers.LossScaleOptimizer(SGD(0.1))
        optimizer = hvd.DistributedOptimizer(
            scaled, backward_passes_per_step=2, average_aggregated_gradients=True
        )
        found, _ = trained(optimizer, *part)
        reference, _ = trained(SGD(0.1), x, y, 24)
        assert same_everywhere(values(found)) and close(values(found), values(reference), 1e-4)


def test_options(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    reference, _ = trained(SGD(0.1), x, y, 24)
    for options in (
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.fp8},
        {"gradient_predivide_factor": 2.0, "num_groups": 2, "sparse_as_dense": True},
    ):
        found, _ = trained(hvd.DistributedOptimizer(SGD(0.1), **options), *part)
        assert same_everywhere(values(found))
        tolerance = 0.05 if options.get("compression") is hvd.Compression.fp8 else 2e-3
        assert close(values(found), values(reference), tolerance), options
    found, _ = trained(hvd.DistributedOptimizer(SGD(0.1 / size), op=hvd.Sum), *part)
    assert close(values(found), values(reference), 1e-4)
    alone = hvd.add_process_set([0])
    found, _ = trained(hvd.DistributedOptimizer(SGD(0.1), process_set=alone), *part)
    own, _ = trained(SGD(0.1), *part)
    assert close(values(found), values(own), 1e-6)
    hvd.remove_process_set(alone)
    make = hvd.DistributedOptimizer
    raises(ValueError, "Keras 3", make, 3)
    raises(ValueError, "already", make, make(SGD(0.1)))
    raises(ValueError, "op is 4", make, SGD(0.1), op=hvd.Max)
    raises(ValueError, "backward_passes_per_step is 0", make, SGD(), backward_passes_per_step=0)
    raises(ValueError, "must be 1", make, SGD(), op=hvd.Sum, gradient_predivide_factor=2.0)
    if TENSORFLOW:
        if not size & (size - 1):
            found, _ = trained(make(SGD(0.1), op=hvd.Adasum), *part)
            assert same_everywhere(values(found))
    else:
        raises(NotImplementedError, "TensorFlow backend", make, SGD(), op=hvd.Adasum)
        raises(NotImplementedError, "Compression.none, fp16", make, SGD(), compression=int)


def test_partial(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for scales in (True, False):
        model = network()
        optimizer = hvd.PartialDistributedOptimizer(
            SGD(0.1), local_layers=model.layers[-1], scale_local_gradients=scales
        )
        before = values(model)
        found, _ = trained(optimizer, *part, model=model, epochs=1)
        first, last = values(found)[:2], values(found)[2:]
        assert same_everywhere(first) and not same_everywhere(last)
        assert (last[0] != before[2]).any()
    raises(ValueError, "local_layers", hvd.PartialDistributedOptimizer, SGD(), local_layers=[1])


def test_values(rank, size):
    total = size * (size + 1) // 2
    whole = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
    found = [
        hvd.allreduce(rank + 1, op=hvd.Sum),
        hvd.allreduce(rank + 1.0, name="mean"),
        hvd.allreduce(whole, average=False, prescale_factor=0.5, postscale_factor=2.0),
        hvd.allreduce(keras.ops.ones((2,)) * rank, op=hvd.Max),
        hvd.allreduce(np.float32(1.5), compression=hvd.Compression.fp16),
        hvd.allgather(np.full((rank + 1, 2), rank)),
        hvd.broadcast(whole, 1),
        hvd.reducescatter(np.ones((size, 2), np.float32), op=hvd.Sum),
    ]
    arrays = [keras.ops.convert_to_numpy(one) for one in found]
    assert all(keras.ops.is_tensor(one) for one in found)
    assert arrays[0] == total and arrays[1] == (size + 1) / 2
    assert np.allclose(arrays[2], (whole - rank) * size + sum(range(size)))
    assert (arrays[3] == size - 1).all() and arrays[4] == 1.5 and arrays[4].dtype == np.float32
    assert arrays[5].shape == (total, 2) and np.allclose(arrays[6], whole - rank + 1)
    assert arrays[7].shape == (1, 2) and (arrays[7] == size).all()
    assert hvd.broadcast_object([rank], 1) == [1]
    raises(NotImplementedError, "BroadcastGlobal", hvd.broadcast_global_variables, 0)
    raises(hvd.HorovodInternalError, "", hvd.allreduce, np.ones(2 + (rank == 0)), name="wrong")
    # JAX has 32 bits by default.
    for call, value in (
        (lambda x: hvd.allreduce(x, op=hvd.Max), np.int64(2**40)),
        (lambda x: hvd.broadcast(x, 0), np.full(2, -(2**33))),
        (hvd.allgather, np.array([2**40])),
        (lambda x: hvd.broadcast(x, 0), np.float64(1e300)),
    ):
        if keras.backend.backend() == "jax":
            raises(ValueError, "cannot hold", call, value)
        else:
            assert np.array_equal(np.unique(keras.ops.convert_to_numpy(call(value))), [value.max()])
    for value in (np.int64(5), np.float64(1) / 3, np.float64("inf")):
        assert np.isclose(keras.ops.convert_to_numpy(hvd.broadcast(value, 0)), value)


def test_copies(rank, size):
    for wrap in (hvd.DistributedOptimizer, herring.keras.DistributedOptimizer):
        optimizer = wrap(SGD(0.1))
        model = network(seed=1)
        model.compile(optimizer, loss="mse")
        for one in (optimizer, model, {"model": model}):
            raises(ValueError, "would not average", copy.deepcopy, one)
        raises(ValueError, "would not average", copy.copy, optimizer)
        for one in (optimizer, {"optimizer": optimizer}):
            raises(herring.InvalidArgumentError, "cannot be pickled", pickle.dumps, one)
        config = pickle.loads(pickle.dumps(keras.optimizers.serialize(optimizer)))
        assert type(keras.optimizers.deserialize(config)) is type(SGD(0.1))
        loaded = pickle.loads(pickle.dumps(model)).optimizer  # like a saved one
        assert isinstance(loaded, SGD) and not herring.keras.is_distributed(loaded)
    alone = network(seed=1)
    alone.compile(SGD(0.1), loss="mse")
    assert isinstance(copy.deepcopy(alone).optimizer, SGD)


def test_saved_with_passes(rank, size):
    """A saved model has the steps of its optimizer, and no number of passes."""
    x, y = data()
    part = mine(x, y, 12, rank, size)
    adam, scaling = keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
    for make in (lambda: adam(0.1), lambda: scaling(adam(0.1))):

        def wrapped(make=make):
            return hvd.DistributedOptimizer(
                make(), backward_passes_per_step=2, average_aggregated_gradients=True
            )

        first = wrapped()
        model, _ = trained(first, *part)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            loaded = hvd.load_model(path)
            weights = os.path.join(folder, "model.weights.h5")
            model.save_weights(weights)
            second = network(seed=1)
            second.compile(wrapped(), loss=model.loss)
            second.optimizer.build(second.trainable_variables)
            second.load_weights(weights)
        inner = getattr(loaded.optimizer, "inner_optimizer", loaded.optimizer)
        own = getattr(first, "inner_optimizer", first)
        assert type(loaded.optimizer).__name__ == type(first).__name__
        assert inner.gradient_accumulation_steps is None
        assert int(inner.iterations) == int(own.iterations)
        states = [values_of(one) for one in (own, inner)]
        assert close(states[0], states[1], 0)
        assert int(second.optimizer.iterations) == int(own.iterations)
        # One step of the loaded model is a whole step, with the averages of all ranks.
        alone = keras.models.clone_model(model)
        alone.set_weights(model.get_weights())
        reference = make()
        reference.build(alone.trainable_variables)
        plain = getattr(reference, "inner_optimizer", reference)
        for variable, value in zip(plain.variables, states[1]):
            variable.assign(value)
        if scaling is type(reference):
            scale = float(loaded.optimizer.dynamic_scale)
            reference.dynamic_scale.assign(scale)
        alone.compile(reference, loss=model.loss)
        alone.train_on_batch(x[:24], y[:24])
        loaded.train_on_batch(*(one[:12] for one in part[:2]))
        assert same_everywhere(values(loaded)) and close(values(loaded), values(alone), 1e-4)


def values_of(optimizer):
    """Returns the optimizer's variables except the sums of an unfinished step, and the count."""
    sums = [id(one) for one in getattr(optimizer, "_accumulated_gradients", ())]
    found = {id(one): keras.ops.convert_to_numpy(one) for one in optimizer.variables}
    found[id(optimizer._iterations)] = np.asarray(int(optimizer.iterations))
    return [value for key, value in found.items() if key not in sums]


def test_wrapped_in_another_job(rank, size):
    x, y = data()
    part = mine(x, y, 12, rank, size)
    passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    optimizers = [(SGD(0.1), passes, 12), (SGD(0.1), {}, 24), (SGD(0.1), {}, 24)]
    for optimizer, options, _ in optimizers:
        hvd.DistributedOptimizer(optimizer, **options)
        raises(ValueError, "averages gradients already", hvd.DistributedOptimizer, optimizer)
    model, _ = trained(optimizers[0][0], *mine(x, y, 12, rank, size))
    hvd.shutdown()
    hvd.init()
    if not TENSORFLOW:  # Keras itself adds up gradients there.
        raises(ValueError, "with 2 before", hvd.DistributedOptimizer, optimizers[0][0])
    for optimizer, options, batch in optimizers:
        again = network(seed=1) if batch == 24 else model
        wrapped = hvd.DistributedOptimizer(optimizer, **options)
        assert wrapped is optimizer and type(optimizer).__name__ == "SGD"
        part = mine(x, y, batch, rank, size)
        found, _ = trained(wrapped, *part, model=again)
        assert same_everywhere(values(found))
    reference, _ = trained(SGD(0.1), x, y, 24)
    assert close(values(found), values(reference), 1e-4)


def test_callbacks(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "best.keras")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * size, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(0.1 * size, lambda e: 0.5, start_epoch=2),
            hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=path),
        ]
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
        model, history = trained(
            optimizer, *part, model=network(seed=rank), epochs=3, callbacks=callbacks
        )
        assert same_everywhere(values(model))
        assert len(set(hvd.allgather_object(tuple(history["loss"])))) == 1
        assert np.isclose(float(model.optimizer.learning_rate), 0.05 * size)
        loaded = hvd.load_model(path, compression=hvd.Compression.fp16)
        assert is_distributed(loaded.optimizer)
        assert isinstance(loaded.optimizer, keras.optimizers.Adam)
        loaded.fit(part[0], part[1], batch_size=part[2], epochs=1, verbose=0, shuffle=False)
        assert same_everywhere(values(loaded))
        raises(NotImplementedError, "Keras 3", hvd.load_model, path, legacy_opts=True)
    raises(ValueError, "filepath", hvd.callbacks.BestModelCheckpoint)
    make = hvd.callbacks.BroadcastGlobalVariablesCallback
    raises(ValueError, "local_variables", make, 0, local_variables=[1])
    raises(ValueError, f"root_rank is {size}", make, size)


def test_embedding(rank, size):
    """The gradients of an embedding are slices in TensorFlow."""
    rows = np.arange(24, dtype=np.int32).reshape(12, 2) % 5
    targets = np.linspace(0, 1, 12, dtype=np.float32).reshape(12, 1)
    each = 12 // size
    part = rows[rank * each : rank * each + each], targets[rank * each : rank * each + each]

    def fit(optimizer, x, y):
        keras.utils.set_random_seed(5)
        layers = [keras.layers.Embedding(7, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((2,), dtype="int32"), *layers])
        model.compile(optimizer, loss="mse")
        model.fit(x, y, batch_size=len(x), epochs=4, shuffle=False, verbose=0)
        return values(model)

    reference = fit(SGD(0.1), rows, targets)
    for options in ({}, {"sparse_as_dense": True}):
        found = fit(hvd.DistributedOptimizer(SGD(0.1), **options), *part)
        assert same_everywhere(found) and close(found, reference), options


def test_elastic(rank, size):
    """The state of an elastic program, in a job that is not elastic."""
    raises(ValueError, "no variables yet", hvd.elastic.KerasState, keras.Sequential(), SGD())
    raises(ValueError, "is not compiled", hvd.elastic.KerasState, network(seed=1))
    x, y = data()
    model = network(seed=rank)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(0.1), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    model.compile(optimizer, loss="mse")
    state = hvd.elastic.KerasState(model, batch=7, epoch=0, seen=[])
    assert state.optimizer is optimizer and optimizer.built

    @hvd.elastic.run
    def train(state):
        assert same_everywhere(values(model)), "not synchronized"
        model.fit(
            *(x[:8], y[:8]),
            batch_size=2,
            epochs=2 - state.epoch,
            verbose=0,
            callbacks=[
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
            ],
        )

    train(state)
    assert (state.epoch, state.batch) == (2, 0)
    saved = [keras.ops.convert_to_numpy(one) for one in (*model.weights, *optimizer.variables)]
    train_again = hvd.elastic.run(lambda state: model.fit(x[:8], y[:8], batch_size=2, verbose=0))
    train_again(state)
    state.seen.append(1)
    state.restore()
    found = [keras.ops.convert_to_numpy(one) for one in (*model.weights, *optimizer.variables)]
    assert all((one == other).all() for one, other in zip(found, saved)) and state.seen == []
    if not TENSORFLOW:
        return
    count = optimizer._herring_passes._count
    model.train_on_batch(x[:4], y[:4])  # a pass after which no step follows
    assert count.numpy() == 1
    state.sync()
    assert count.numpy() == 0


def test_of_tensorflow(rank, size):
    if not TENSORFLOW:
        return
    import herring.horovod.tensorflow as whole
    import herring.horovod.tensorflow.keras as other

    assert other.DistributedOptimizer is hvd.DistributedOptimizer
    assert other.callbacks.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
    assert other.Compression is whole.Compression
    x, y = data()
    part = mine(x, y, 24, rank, size)
    optimizer = other.DistributedOptimizer(SGD(0.1), compression=other.Compression.fp16)
    found, _ = trained(optimizer, *part)
    assert same_everywhere(values(found))
    assert other.allreduce(1.0, compression=other.Compression.fp16) == 1
    assert other.elastic.KerasState is hvd.elastic.KerasState
    assert whole.elastic.TensorFlowKerasState is hvd.elastic.TensorFlowKerasState

    def normalized(layer):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(8), layer, keras.layers.Dense(1, activation="sigmoid")]
        return keras.Sequential([keras.layers.Input((x.shape[1],)), *layers])

    model = normalized(whole.SyncBatchNormalization())
    found, _ = trained(hvd.DistributedOptimizer(SGD(0.1)), *part, model=model)
    alone = normalized(keras.layers.BatchNormalization())
    reference, _ = trained(SGD(0.1), x, y, 24, model=alone)
    assert same_everywhere(values(found)) and close(values(found), values(reference), 1e-4)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    hvd.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](hvd.rank(), hvd.size())
        if hvd.rank() == 0:
            print(f"passed {name}", flush=True)
    hvd.shutdown()
