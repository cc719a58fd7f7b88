"""Test cases of Keras with a partial `sync`: replicas stay equal, and nothing is lost."""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import herring as core
import herring.keras as herring
from keras_cases import FEATURES, close, data, mine, network, raises, same_everywhere, values

MODES = [
    {"sync": "solo"},
    {"sync": "majority", "digest_every": 2},
    {"sync": core.Quorum(2, staleness=1)},
    {"sync": "solo", "algorithm": "doubling"},
]


class Late(keras.callbacks.Callback):
    """Makes this rank late now and then."""

    def __init__(self, seed):
        super().__init__()
        self._delays = random.Random(100 * seed + herring.rank())

    def on_train_batch_begin(self, batch, logs=None):
        if self._delays.random() < 0.4:
            time.sleep(self._delays.random() * 0.02)


def fitted(optimizer, x, y, batch=4, epochs=2, callbacks=(), model=None, seed=1, **compiled):
    model = model or network()
    model.compile(optimizer, **{"loss": "binary_crossentropy", **compiled})
    given = [herring.FlushCallback(), Late(seed), *callbacks]
    history = model.fit(
        x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=given
    )
    return model, history.history


def state_of(optimizer):
    return [np.asarray(keras.ops.convert_to_numpy(one)) for one in optimizer.variables]


def test_replicas_are_equal_after_every_epoch(rank, size):
    x, y = data(seed=rank)
    for number, mode in enumerate(MODES):
        kind = keras.optimizers.Adam if number % 2 else keras.optimizers.SGD
        optimizer = herring.DistributedOptimizer(kind(0.05), **mode)
        model, _ = fitted(optimizer, x, y, run_eagerly=number == 2)
        assert same_everywhere(values(model)), mode
        assert same_everywhere(state_of(optimizer)), mode
        assert set(herring.allgather_object(optimizer.round)) == {optimizer.round}
        assert len(optimizer.statistics.rounds) == optimizer.round >= 24, optimizer.round
        # The last round of an epoch may have nothing, and then no step is made.
        steps = int(keras.ops.convert_to_numpy(optimizer.iterations))
        assert optimizer.round - 2 <= steps <= optimizer.round, (steps, optimizer.round)


def test_nothing_is_lost_if_ranks_have_different_numbers_of_batches(rank, size):
    for number, mode in enumerate(MODES):
        op = "sum" if number % 2 else "average"
        steps = 3 + 4 * ((rank + number) % size)
        # Gradients are whole numbers that do not depend on the weights.
        x = np.ones((steps, 3), np.float32) * (1 + np.arange(steps, dtype=np.float32))[:, None]
        x *= 1 + rank
        layers = [keras.layers.Input((3,)), keras.layers.Dense(2, use_bias=False)]
        model = keras.Sequential(layers)
        model.layers[0].kernel.assign(np.zeros((3, 2), np.float32))
        optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op, **mode)
        fitted(
            optimizer,
            x,
            np.zeros((steps, 2), np.float32),
            batch=1,
            epochs=1,
            model=model,
            loss=lambda _, found: keras.ops.sum(found),
        )
        total = sum(herring.allgather_object((1 + rank) * steps * (steps + 1) / 2))
        moved = total if op == "sum" else total / size
        assert close(values(model), [np.full((3, 2), -moved)], 1e-5), (values(model), moved)
        assert same_everywhere(values(model))
        assert set(herring.allgather_object(optimizer.round)) == {optimizer.round}


def test_without_staleness_it_is_full(rank, size):
    x, y = data()
    part = mine(x, y, 24, rank, size)
    for options in ({}, {"run_eagerly": True}):
        models = []
        for sync in ("full", core.Quorum(size, staleness=0)):
            inner = keras.optimizers.SGD(0.1, momentum=0.9)
            model, _ = fitted(herring.DistributedOptimizer(inner, sync=sync), *part, **options)
            models.append(values(model))
        assert close(*models, 1e-6), options


def test_several_steps_in_one_execution(rank, size):
    if keras.backend.backend() == "torch":
        return  # Keras on torch runs one step per execution only.
    x, y = data(seed=rank)
    optimizer = herring.DistributedOptimizer(keras.optimizers.Adam(0.01), sync="majority")
    model, _ = fitted(optimizer, x, y, steps_per_execution=4)
    assert same_everywhere(values(model)) and optimizer.round >= 24


def test_schedules_count_rounds(rank, size):
    x, y = data(seed=rank)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    inner = keras.optimizers.SGD(schedule, use_ema=True, gradient_accumulation_steps=2)
    optimizer = herring.DistributedOptimizer(inner, sync="solo", digest_every=1)
    model, _ = fitted(optimizer, x, y)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    steps = int(keras.ops.convert_to_numpy(inner._iterations))  # also accumulating ones
    assert optimizer.round - 2 <= steps <= optimizer.round, (steps, optimizer.round)
    assert abs(rate - 0.1 * 0.5 ** (steps / 10)) < 1e-6, (rate, steps)
    assert same_everywhere(values(model))
    # A new one: on JAX, Keras cannot fit a model again whose variables have got the averages.
    inner = keras.optimizers.SGD(0.1, use_ema=True)
    optimizer, model = herring.DistributedOptimizer(inner, sync="solo"), network()
    model.compile(optimizer, loss="mse")
    text = "use_ema replaces the variables"
    raises(core.InvalidArgumentError, text, model.fit, x, y, verbose=0)
    optimizer.flush()


def test_scaled_losses(rank, size):
    x, y = data(seed=rank)
    for eager in (False, True):
        inner = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=5
        )
        optimizer = herring.DistributedOptimizer(inner, sync="majority")
        model, _ = fitted(optimizer, x, y, run_eagerly=eager)
        assert same_everywhere(values(model)) and same_everywhere(state_of(optimizer))
        scale = float(keras.ops.convert_to_numpy(inner.dynamic_scale))
        assert scale > 8, scale


def test_own_loops(rank, size):
    """Outside of fit: gradients are given to apply_gradients, and one variable has none."""
    variables = [keras.Variable(np.zeros(4, np.float32), name=name) for name in ("a", "b", "c")]
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(1.0), sync="majority")
    optimizer.build(variables)
    optimizer.flush()  # before the first step it ends a series without any
    for _ in range(3 + rank):
        gradients = [keras.ops.ones(4), None if rank else keras.ops.ones(4), None]
        optimizer.apply_gradients(zip(gradients, variables))
    optimizer.flush()
    found = [float(keras.ops.convert_to_numpy(one)[0]) for one in variables]
    steps = sum(3 + each for each in range(size))
    assert close([found], [[-steps / size, -3 / size, 0]]), found
    assert same_everywhere([np.asarray(found)])
    more = [keras.ops.ones(4)] * 3
    text = "which had none on any rank in the first step"
    raises(core.InvalidArgumentError, text, optimizer.apply_gradients, zip(more, variables))


def test_statistics_in_the_metrics(rank, size):
    x, y = data(seed=rank)
    optimizer = herring.DistributedOptimizer(keras.optimizers.SGD(0.1), sync="solo")
    callbacks = [herring.RoundStatisticsCallback(), herring.MetricAverageCallback()]
    _, history = fitted(optimizer, x, y, callbacks=callbacks)
    assert sum(history["herring/rounds"]) == optimizer.round, history
    counts = [count for count, _ in optimizer.statistics.rounds]
    first = int(history["herring/rounds"][0])
    assert abs(history["herring/contributors"][0] - np.mean(counts[:first])) < 1e-9
    assert all(0 <= one <= 4 for one in history["herring/staleness"]), history
    assert len({str(one) for one in herring.allgather_object(history["loss"])}) == 1


def test_replays(rank, size):
    folder = tempfile.mkdtemp() if rank == 0 else None
    path = Path(herring.broadcast_object(folder), "rounds.json")
    x, y = data(seed=rank)

    def train(sync, seed):
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer = herring.DistributedOptimizer(inner, sync=sync)
        model, _ = fitted(optimizer, x, y, seed=seed)
        return [one.tobytes() for one in values(model)], optimizer

    recorded, optimizer = train("solo", 1)
    optimizer.statistics.save(path)
    replayed, _ = train(core.Replay(path), 2)
    assert replayed == recorded


def test_refusals(rank, size):
    refused = core.InvalidArgumentError

    def make(**options):
        return herring.DistributedOptimizer(
            keras.optimizers.SGD(0.1), **{"sync": "solo", **options}
        )

    raises(refused, "sync is 'some'; it must be 'full', 'solo'", make, sync="some")
    raises(refused, "quorum is 9", make, sync=core.Quorum(9))
    raises(refused, "does not take wire_dtype='float16'", make, wire_dtype="float16")
    raises(refused, "does not take buffer_bytes=4096", make, buffer_bytes=4096)
    raises(refused, "does not take sparse='gather'", make, sparse="gather")
    raises(refused, "the algorithm", make, algorithm="snail")
    raises(refused, "'doubling' is for", make, sync="full", algorithm="doubling")
    raises(refused, "digest_every is -1", make, digest_every=-1)
    raises(refused, "op must be", make, op="max")
    full = make(sync="full")
    full.flush()
    raises(refused, "wrapped with sync='full'", getattr, full, "round")
    x, y = data(seed=rank)

    def fails(text, *callbacks, built=True):
        model, optimizer = network(built=built), make()
        model.compile(optimizer, loss="mse")
        raises(refused, text, model.fit, x, y, epochs=2, verbose=0, callbacks=list(callbacks))
        if optimizer.built:
            optimizer.flush()

    fails("an average of metrics while", herring.MetricAverageCallback())
    schedule = herring.LearningRateScheduleCallback
    fails("a change of the learning rate while", schedule(0.1, 0.5))
    fails("LearningRateScheduleCallback changes", schedule(0.1, 0.5, staircase=False))
    fails("LearningRateWarmupCallback changes", herring.LearningRateWarmupCallback(0.1))
    if keras.backend.backend() == "tensorflow":  # the others build models before callbacks
        fails("has no variables yet", herring.BroadcastGlobalVariablesCallback(), built=False)


def test_ranks_that_disagree(rank, size):
    inner = keras.optimizers.SGD(0.1)
    optimizer = herring.DistributedOptimizer(inner, sync="solo" if rank else "majority")
    variable = keras.Variable(np.zeros(FEATURES, np.float32))
    given = [(keras.ops.ones(FEATURES), variable)]
    raises(core.MismatchError, "sync='solo'", optimizer.apply_gradients, given)


CASES = {name[5:]: case for name, case in globals().items() if name.startswith("test_")}

if __name__ == "__main__":
    herring.init()
    for name in sys.argv[1:] or CASES:
        CASES[name](herring.rank(), herring.size())
        herring.barrier()
        if herring.rank() == 0:
            print(f"passed {name}", flush=True)
