"""Trains in an elastic job, and repeats the training alone from what the steps were.

A step takes samples that follow from its number, the rank and the number of ranks. Worker 1 kills
itself in the middle of an epoch, and worker 0 goes on alone.
"""

import os
import signal

import keras
import numpy as np

import herring.elastic
import herring.keras

keras.config.set_floatx("float64")
slot = int(os.environ["HERRING_RANK"])
STEPS, EPOCHS, BATCH, RATE = 5, 4, 4, 0.02
inputs = np.random.default_rng(1).normal(size=(64, 6))
targets = np.tanh(inputs[:, :2])


def samples(step, rank, size):
    return np.arange(BATCH) * 5 + BATCH * (step * size + rank) * 3


def batches(step):
    while True:
        chosen = samples(step, herring.rank(), herring.size()) % len(inputs)
        yield inputs[chosen], targets[chosen]
        step += 1


def build(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)]
    return keras.Sequential([keras.layers.Input((6,)), *layers]), keras.optimizers.Adam(RATE)


def compiled(model, optimizer):
    model.compile(optimizer, loss="mse", metrics=["mae"])


class History(keras.callbacks.Callback):
    """Notes how many ranks were in a step; worker 1 dies in one."""

    def on_train_batch_end(self, batch, logs=None):
        state.history = [*state.history, herring.size()]
        if slot == 1 and state.epoch == 1 and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)


model, optimizer = build(slot)  # each worker begins with other weights
state = herring.keras.State(model=model, optimizer=optimizer, epoch=0, batch=0, history=[])
state.on_generation(lambda: setattr(optimizer, "learning_rate", RATE * herring.size()))
first = []  # the weights with which training begins
calls = []  # the number of ranks in each generation


@herring.elastic.run
def train(state):
    calls.append(herring.size())
    wrapped = herring.keras.DistributedOptimizer(optimizer)
    if not first:  # what is traced now goes on in the next generation
        compiled(model, wrapped)
        first[:] = model.get_weights()
    model.fit(
        batches(state.epoch * STEPS + state.batch),
        steps_per_epoch=STEPS,
        initial_epoch=state.epoch,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[
            herring.keras.UpdateEpochStateCallback(state),
            herring.keras.UpdateBatchStateCallback(state),
            History(),
            herring.keras.CommitStateCallback(state),
        ],
    )


train(state)
assert (state.epoch, state.batch) == (EPOCHS, 0)
print(f"sizes {calls}, steps of {state.history}", flush=True)
alone, its_optimizer = build(9)
compiled(alone, its_optimizer)
alone.set_weights(first)
for step, size in enumerate(state.history):
    its_optimizer.learning_rate = RATE * size
    chosen = np.concatenate([samples(step, r, size) for r in range(size)]) % len(inputs)
    alone.train_on_batch(inputs[chosen], targets[chosen])
# On PyTorch, Keras computes parts of a loss in float32.
tolerance = 1e-9 if keras.backend.backend() == "tensorflow" else 1e-5
for one, other in zip(model.get_weights(), alone.get_weights()):
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance / 1000)
print("the same as alone", flush=True)
