"""Test cases of Keras, with a model, data, and a reference without Herring."""

import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import herring.keras as herring
from herring import elastic
from herring.arrays.gradients import GradientRounds

ROWS, FEATURES = 48, 6


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    return x, y


def mine(x, y, batch, rank, size):
    """Returns this rank's part of each global batch of `batch` rows, and the size of the part."""
    each = batch // size
    rows = [b + rank * each + i for b in range(0, len(x), batch) for i in range(each)]
    return x[rows], y[rows], each


def network(seed=1, built=True):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
    return keras.Sequential([keras.layers.Input((FEATURES,)), *layers] if built else layers)


def trained(optimizer, x, y, batch, model=None, epochs=2, callbacks=(), **compiled):
    model = model or network()
    model.compile(optimizer, **{"loss": "binary_crossentropy", **compiled})
    history = model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model, history.history


def values(model):
    return [np.asarray(keras.ops.convert_to_numpy(w)) for w in model.weights]


def same_everywhere(arrays):
    digests = herring.allgather_object([a.tobytes() for a in arrays])
    return all(d == digests[0] for d in digests)


def close(left, right, tolerance=1e-5):
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right))


def raises(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} for {text}")


def test_equals_one_process(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for kind, options in [
        (keras.optimizers.SGD, {"learning_rate": 0.1, "momentum": 0.9}),
        (keras.optimizers.Adam, {"learning_rate": 0.01, "clipnorm": 0.5}),
        (keras.optimizers.SGD, {"learning_rate": 0.1, "gradient_accumulation_steps": 2}),
    ]:
        reference, _ = trained(kind(**options), x, y, 24)
        model, _ = trained(herring.DistributedOptimizer(kind(**options)), *part)
        assert same_everywhere(values(model)), kind
        assert close(values(model), values(reference)), kind


def test_eager_equals_one_process(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    reference, _ = trained(keras.optimizers.SGD(0.1), x, y, 24)
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model, _ = trained(optimizer, *part, run_eagerly=True)
    assert same_everywhere(values(model)) and close(values(model), values(reference))


def test_wire_dtypes(rank, size):
    """The network has fewer numbers than a pack of the largest takes, so all of them travel."""
    x, y = data()
    part = mine(x, y, 24, rank, size)
    reference, _ = trained(keras.optimizers.SGD(0.1), x, y, 24)
    for wire in ("fp8", ("fp8", "bfloat16"), ("int8", "float32"), herring.TopK(0.1)):
        optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), wire_dtype=wire)
        model, _ = trained(optimizer, *part)
        assert same_everywhere(values(model)), wire
        assert close(values(model), values(reference), 0.01), wire
        assert not close(values(model), values(reference), 1e-9), wire


def test_steps_per_execution(rank, size):
    if keras.backend.backend() == "torch":
        return  # Keras on torch runs one step per execution only.
    x, y = data()
    part = mine(x, y, 12, rank, size)
    reference, _ = trained(keras.optimizers.SGD(0.1), x, y, 12)
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model, _ = trained(optimizer, *part, steps_per_execution=4)
    assert same_everywhere(values(model)) and close(values(model), values(reference))


def test_broadcast_and_metrics(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for built in (True, False):
        model = network(seed=rank, built=built)
        callbacks = [herring.BroadcastGlobalVariablesCallback(), herring.MetricAverageCallback()]
        optimizer = herring.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model, history = trained(optimizer, *part, model=model, callbacks=callbacks)
        assert same_everywhere(values(model)), built
        states = [np.asarray(keras.ops.convert_to_numpy(v)) for v in optimizer.variables]
        assert same_everywhere(states), built
        losses = herring.allgather_object(history["loss"])
        assert all(one == losses[0] for one in losses), losses


def test_seconds_of_steps(rank, size):
    class Keep(keras.callbacks.Callback):  # such as callbacks for TensorBoard and W&B
        def __init__(self):
            super().__init__()
            self.of_batches = []

        def on_train_batch_end(self, batch, logs=None):
            self.of_batches.append({k: v for k, v in logs.items() if k.startswith("herring/")})

    x, y = data()
    part = mine(x, y, 24, rank, size)
    few = {"herring/step_seconds", "herring/exposed_seconds"}
    for every, details in ((None, False), (2, True)):
        keep = Keep()
        callbacks = [herring.StepSecondsCallback(every, details=details), keep]
        model = network()
        optimizer = herring.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, loss="binary_crossentropy")
        options = {"epochs": 2, "verbose": 0, "validation_data": (x, y)}
        history = model.fit(*part[:2], part[2], callbacks=callbacks, **options).history
        names = {name for name in history if name.startswith("herring/")}
        assert names > few if details else names == few, names
        assert all(len(history[name]) == 2 for name in names), history
        assert all(value > 0 for value in history["herring/step_seconds"]), history
        # An epoch has two batches.
        assert [bool(one) for one in keep.of_batches] == [False, every == 2] * 2, keep.of_batches
    raises(herring.InvalidArgumentError, "every is 0", herring.StepSecondsCallback, 0)


def test_warm_up(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    seen = []
    model = network()

    def note_rate(batch, logs):
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        seen.append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))

    note = keras.callbacks.LambdaCallback(on_train_batch_begin=note_rate)
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.4))
    callbacks = [herring.LearningRateWarmupCallback(0.4, warmup_epochs=2), note]
    trained(optimizer, *part, model=model, epochs=3, callbacks=callbacks)
    steps = [0.4 / size * ((i / 2 + 0.5) * (size - 1) / 2 + 1) for i in range(4)]
    assert np.allclose(seen, [*steps, 0.4, 0.4]), (seen, steps)


def test_saved_as_what_it_was(rank, size):
    plain = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9))
    expected = keras.optimizers.serialize(plain)
    optimizer = herring.DistributedOptimizer(plain)
    assert optimizer is plain and herring.is_distributed(optimizer)
    assert keras.optimizers.serialize(optimizer) == expected
    assert isinstance(optimizer, keras.optimizers.Adam)
    again = type(optimizer).from_config(optimizer.get_config())
    assert isinstance(again, keras.optimizers.Adam) and not herring.is_distributed(again)
    raises(herring.InvalidArgumentError, "already", herring.DistributedOptimizer, optimizer)
    raises(herring.InvalidArgumentError, "keras", herring.DistributedOptimizer, "adam")


def test_checkpoint(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    path = herring.broadcast_object(os.path.join(os.environ["SCRATCH"], "model.keras"))
    checkpoint = herring.on_root(lambda: keras.callbacks.ModelCheckpoint(path))
    assert len(checkpoint) == (rank == 0)
    optimizer = herring.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model, _ = trained(optimizer, *part, callbacks=checkpoint)
    herring.barrier()
    plain = keras.saving.load_model(path)
    assert isinstance(plain.optimizer, keras.optimizers.Adam)
    assert not herring.is_distributed(plain.optimizer)
    again = herring.load_model(path)
    assert herring.is_distributed(again.optimizer)
    assert all((a == b).all() for a, b in zip(values(again), values(model)))
    for one in (again, model):  # Both continue from the same state.
        one.fit(part[0], part[1], batch_size=part[2], shuffle=False, verbose=0)
    assert same_everywhere(values(again)) and close(values(again), values(model), 1e-6)


def test_mixed_float16(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0**9
        )
        optimizer = herring.DistributedOptimizer(scaled)
        bad = part[0].copy()
        bad[-1] = np.where(rank == size - 1, np.inf, bad[-1])  # in one rank's last batch
        model, _ = trained(optimizer, bad, part[1], part[2], epochs=1, loss="mse")
        assert model.optimizer is optimizer
        assert same_everywhere(values(model))
        assert all(np.isfinite(v).all() for v in values(model))
        scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
        assert scale == 2.0**8, scale
        wrong = herring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        raises(Exception, "opposite order", trained, wrong, *part)
    finally:
        keras.config.set_dtype_policy("float32")


class TwoHeads(keras.Model):
    """A model that uses its second head only if `both`, as rank 0 does, and its third never."""

    def __init__(self, both):
        super().__init__()
        self.heads = [keras.layers.Dense(1, use_bias=False) for _ in range(3)]
        for head in self.heads:
            head.build((None, FEATURES))
        self.both = both

    def call(self, x):
        out = self.heads[0](x)
        return out + self.heads[1](x) if self.both else out


def test_missing_gradients(rank, size):
    import warnings

    x, y = data()
    part = mine(x, y, 24, rank, size)
    keras.utils.set_random_seed(3)
    model = TwoHeads(both=rank == 0)
    model.compile(herring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    before = values(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(part[0], part[1], batch_size=part[2], verbose=0, shuffle=False)
    after = values(model)
    assert same_everywhere(after)
    assert (after[1] != before[1]).any()
    if keras.backend.backend() != "jax":  # JAX's gradient for it is zero.
        assert (after[2] == before[2]).all()


def test_ways_on_jax(rank, size):
    """Averages by the handler, and by a callback, also if only some ranks can use the handler."""
    if keras.backend.backend() != "jax":
        return
    x, y = data()
    part = mine(x, y, 24, rank, size)
    reference, _ = trained(keras.optimizers.SGD(0.1), x, y, 24)
    ways = [("", {}), ("callback", {}), ("callback" if rank == 0 else "ffi", {})]
    ways += [("", {"buffer_bytes": 1 << 16}), ("", {"wire_dtype": "bfloat16"})]
    ways.append(("", {"wire_dtype": "fp8"}))
    for way, options in ways:
        os.environ["HERRING_JAX_IMPL"] = way
        optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        model, _ = trained(optimizer, *part)
        assert same_everywhere(values(model)), (way, options)
        assert close(values(model), values(reference), 0.02 if options else 1e-5), (way, options)
    os.environ["HERRING_JAX_IMPL"] = "mpi" if rank == 0 else ""
    wrong = herring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    raises(Exception, "HERRING_JAX_IMPL=mpi", trained, wrong, *part)  # all ranks are told
    os.environ["HERRING_JAX_IMPL"] = ""


def test_gradients_applied_by_hand(rank, size):
    if keras.backend.backend() == "tensorflow":
        return  # tested in test_tensorflow.py
    variables = [keras.Variable(np.ones(3, np.float32), name=name) for name in "abc"]
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(1.0))
    gradient = keras.ops.ones(3)
    for _ in range(2):  # "b" has a gradient on rank 0 only, "c" on no rank.
        optimizer.apply([gradient * (rank + 1), gradient if rank == 0 else None, None], variables)
    found = [keras.ops.convert_to_numpy(one.value)[0] for one in variables]
    assert np.allclose(found, [1 - (size + 1), 1 - 2 / size, 1]), found
    for ranks in (range(size), [0], [size - 1]):  # A new gradient for "c" fails on all.
        later = [gradient, None, gradient if rank in ranks else None]
        raises(herring.InvalidArgumentError, "in the first step", optimizer.apply, later, variables)
        before = keras.ops.convert_to_numpy(variables[0].value)[0]
        optimizer.apply([gradient * (rank + 1), None, None], variables)  # Ranks stay in step.
        after = keras.ops.convert_to_numpy(variables[0].value)[0]
        assert np.isclose(before - after, (size + 1) / 2), (before, after)


def test_devices_on_torch(rank, size):
    """An average lies on its variable's device, also on a rank that has no gradient."""
    if keras.backend.backend() != "torch":
        return
    import types

    import torch

    from herring.keras.averaging import make_averager

    options = {"op": "sum", "wire_dtype": None, "buffer_bytes": 0, "sparse": "densify"}
    averager = make_averager("devices", {**options, "group": None})
    variables = [
        types.SimpleNamespace(
            path=device, shape=(3,), dtype="float32", value=torch.empty(3, device=device)
        )
        for device in ("meta", "cpu")  # "meta" stands for a GPU.
    ]
    for _ in range(2):
        gradients = [torch.ones(3), torch.ones(3)] if rank == 0 else [None, None]
        found = averager.average(gradients, variables)
        assert [one.device.type for one in found] == ["meta", "cpu"], found
        assert (found[1] == 1).all(), found


def test_an_optimizer_of_another_job(rank, size):
    variable = keras.Variable(np.ones(3, np.float32))
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([keras.ops.ones(3)], [variable])
    herring.barrier()
    herring.shutdown()
    herring.init()
    if keras.backend.backend() != "tensorflow":  # Functions compiled in the first job remain.
        raises(herring.ShutdownError, "has ended", optimizer.apply, [keras.ops.ones(3)], [variable])
    assert herring.DistributedOptimizer(optimizer) is optimizer
    variable.assign(np.zeros(3, np.float32))
    optimizer.apply([keras.ops.ones(3) * rank], [variable])
    assert close([keras.ops.convert_to_numpy(variable)], [np.full(3, -(size - 1) / 2)])


def test_two_optimizers_and_groups(rank, size):
    x, y = data()
    first = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), name="first")
    second = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), name="second")
    alone = herring.new_group([rank])
    third = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), group=alone)
    part = mine(x, y, 24, rank, size)
    if keras.backend.backend() == "tensorflow":
        both = [network(1), network(2)]
        import tensorflow as tf

        def step(optimizer, model, rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(rows) - 1.0))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        steps = [tf.function(step), tf.function(step)]
        for optimizer, function, model in zip((first, second), steps, both):
            function(optimizer, model, part[0])
        for _ in range(3):
            for i in (0, 1):
                steps[i]((first, second)[i], both[i], part[0][: 4 + i])  # Retraces the function.
        assert same_everywhere([v for model in both for v in values(model)])
    mine_alone, _ = trained(third, *part)
    reference, _ = trained(keras.optimizers.SGD(0.1), *part)
    assert close(values(mine_alone), values(reference), 1e-6)


def test_elastic_state(rank, size):
    """Commits, and the callbacks that count, in a job that is not elastic."""
    if keras.backend.backend() == "jax":
        raises(herring.InvalidArgumentError, "KERAS_BACKEND=tensorflow or torch", herring.State)
    if keras.backend.backend() != "tensorflow":  # others have no steps_per_execution as below
        return
    raises(herring.InvalidArgumentError, "no variables", herring.State, m=keras.Sequential())
    x, y = data()
    model, shared = network(seed=rank), keras.Variable([1.0 + rank])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", steps_per_execution=2)
    state = herring.State(model=model, extra=[shared], epoch=0, batch=0, seen=[])
    commits = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            state.seen.append((state.epoch, state.batch))

        def on_train_end(self, logs=None):
            commits.append(state.steps)

    def fit(*more, epochs=3):
        model.fit(
            *(x[:16], y[:16]),
            batch_size=2,
            epochs=epochs,
            initial_epoch=state.epoch,
            verbose=0,
            callbacks=[
                herring.UpdateBatchStateCallback(state),
                herring.UpdateEpochStateCallback(state),
                Count(),
                *more,
                herring.CommitStateCallback(state, batches_per_commit=4),
            ],
        )

    @elastic.run
    def train(state):
        everyone = herring.allgather_object([one.tolist() for one in model.get_weights()])
        assert all(one == everyone[0] for one in everyone) and shared.numpy() == 1
        state.batch = 4
        fit(epochs=2)

    train(state)
    # An epoch of 8 batches that has had 4 ends after 4 more, and the next one is whole.
    assert state.seen == [(0, 6), (0, 8), (1, 2), (1, 4), (1, 6), (1, 8)], state.seen
    assert (state.epoch, state.batch) == (2, 0)
    # After batch 4 of the second epoch, and at the end of both.
    assert commits == [3], commits
    saved = [one.numpy() for one in (*model.weights, *model.optimizer.variables)]
    shared.assign([5.0])
    model.train_on_batch(x[:4], y[:4])
    state.epoch, state.seen[0] = 9, None
    state._restore()
    found = [one.numpy() for one in (*model.weights, *model.optimizer.variables)]
    assert all((one == other).all() for one, other in zip(found, saved)) and shared.numpy() == 1
    assert state.epoch == 2 and state.seen[0] == (0, 6)

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    state.batch = 4
    fit(Stops(), epochs=9)
    assert state.epoch == 3, "the training did not stop where a callback has asked for that"


def test_xla(rank, size):
    if keras.backend.backend() != "tensorflow":
        return
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for callbacks in ([], [herring.BroadcastGlobalVariablesCallback()]):
        optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        raises(
            Exception,
            "jit_compile=False",
            lambda o=optimizer, c=callbacks: trained(o, *part, callbacks=c, jit_compile=True),
        )


def test_embedding(rank, size):
    rows = np.arange(24, dtype=np.int32).reshape(12, 2) % 5
    targets = np.linspace(0, 1, 12, dtype=np.float32).reshape(12, 1)
    each = 12 // size
    part = rows[rank * each : rank * each + each], targets[rank * each : rank * each + each]
    options = [{}] if keras.backend.backend() != "tensorflow" else [{}, {"sparse": "gather"}]

    def model():
        keras.utils.set_random_seed(5)
        return keras.Sequential(
            [
                keras.layers.Input((2,), dtype="int32"),
                keras.layers.Embedding(7, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    def fit(optimizer, x, y):
        one = model()
        one.compile(optimizer, loss="mse")
        one.fit(x, y, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
        return values(one)

    reference = fit(keras.optimizers.SGD(0.1), rows, targets)
    for one in options:
        found = fit(herring.DistributedOptimizer(keras.optimizers.SGD(0.1), **one), *part)
        assert same_everywhere(found) and close(found, reference), one


def test_models_that_are_gone_leave_no_memory(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)

    def kept():
        keras.backend.clear_session()
        gc.collect()
        found = [one for one in gc.get_objects() if isinstance(one, GradientRounds)]
        return [rounds.name for rounds in found if rounds.name.startswith("optimizer")]

    if keras.backend.backend() != "tensorflow":
        model, _ = trained(herring.DistributedOptimizer(keras.optimizers.SGD(0.1)), *part)
        del model
        assert not kept()
        return

    def train(**options):  # TensorFlow keeps the local variables of functions that call it.
        trained(herring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), *part)
        embedding = keras.Sequential([keras.layers.Embedding(4, 2), keras.layers.Flatten()])
        optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        embedding.compile(optimizer, loss="mse")
        embedding.fit(np.full((4, 1), rank), np.ones((4, 2)), verbose=0)

    for options in ({}, {"sparse": "gather"}):
        train(**options)
        assert not kept()


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
