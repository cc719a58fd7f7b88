"""An elastic program of Horovod's with Keras on any backend, compared with the same steps alone.

Worker 1 dies once in the middle of an epoch, and comes back in another.

Arguments: the folder of the job.
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.keras as hvd
import keras
import numpy as np

hvd.init()
died, slot = Path(sys.argv[1], "died"), int(os.environ["HOROVOD_RANK"])
STEPS, EPOCHS, BATCH = 4, 4, 3
draw = np.random.default_rng(1)
inputs, targets = draw.normal(size=(50, 4)), draw.normal(size=(50, 1))
inputs, targets = inputs.astype("float32"), targets.astype("float32")


def samples(step, rank, size):
    return (np.arange(BATCH) * 5 + BATCH * (step * size + rank) * 3) % len(inputs)


def batches(step):
    while True:
        chosen = samples(step, hvd.rank(), hvd.size())
        yield inputs[chosen], targets[chosen]
        step += 1


def build(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((4,)), *layers])


def momentum(rate):
    return keras.optimizers.SGD(rate, momentum=0.5)


class History(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        state.history.append(hvd.size())
        if slot == 1 and state.epoch == 1 and batch == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + 600  # for worker 1 to come back
        while state.epoch == 2 and batch == 1 and hvd.size() == 1:
            assert time.monotonic() < until
            time.sleep(0.02)
            self.model.get_weights()  # gives variables of JAX their values, as a callback would
            state.commit()


@hvd.elastic.run
def train(state):
    if state.weights is None:
        state.weights = model.get_weights()
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        History(),
        hvd.elastic.CommitStateCallback(state, 2),
    ]
    while state.epoch < EPOCHS:
        begin = state.epoch * STEPS + state.batch
        model.fit(batches(begin), steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)


def reset():
    resets.append(hvd.size())
    model.optimizer.learning_rate = 0.05 * hvd.size()


model = build(slot)
model.compile(hvd.DistributedOptimizer(momentum(0.05 * hvd.size())), loss="mse")
resets = []
state = hvd.elastic.KerasState(model, epoch=0, batch=0, history=[], weights=None)
state.register_reset_callbacks([reset])
train(state)
everyone = hvd.allgather_object([one.tolist() for one in model.get_weights()])
assert all(one == everyone[0] for one in everyone)
print(f"resets {resets}, steps of {state.history}", flush=True)
if slot == 1:
    sys.exit()
alone = build(9)
alone.compile(momentum(0.05), loss="mse")
alone.set_weights(state.weights)
for step, size in enumerate(state.history):
    alone.optimizer.learning_rate = 0.05 * size
    chosen = np.concatenate([samples(step, rank, size) for rank in range(size)])
    alone.train_on_batch(inputs[chosen], targets[chosen])
assert len(state.history) == STEPS * EPOCHS, state.history
for one, other in zip(model.get_weights(), alone.get_weights()):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
print("the same as alone", flush=True)
