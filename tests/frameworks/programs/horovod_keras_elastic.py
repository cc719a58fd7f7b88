"""An elastic program of Horovod's with tf.keras, compared with the same steps made alone.

It makes a step before the training function and after each reset, as Horovod's example does, and a
step with a tape in a tf.function after each epoch. Worker 1 dies once in the middle of an epoch.

Arguments: the folder of the job.
"""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd_tensorflow
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
died, slot = Path(sys.argv[1], "died"), int(os.environ["HOROVOD_RANK"])
STEPS, EPOCHS, BATCH = 4, 4, 3
draw = np.random.default_rng(1)
inputs, targets = draw.integers(0, 12, size=(50, 2)), draw.normal(size=(50, 1)).astype("float32")


def samples(step, rank, size):
    return (np.arange(BATCH) * 5 + BATCH * (step * size + rank) * 3) % len(inputs)


def batches(step):
    while True:
        chosen = samples(step, hvd.rank(), hvd.size())
        yield inputs[chosen], targets[chosen]
        step += 1


def build(seed):
    tf.keras.utils.set_random_seed(seed)
    # Gradients of an embedding are tf.IndexedSlices, which are gathered.
    layers = [tf.keras.layers.Embedding(12, 3), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)]
    return tf.keras.Sequential([tf.keras.layers.Input((2,)), *layers])


def tape_step(model, average):
    chosen = inputs[:BATCH], targets[:BATCH]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(chosen[0]) - chosen[1])) * scale
    if average:
        tape = hvd_tensorflow.DistributedGradientTape(tape)
    for gradient, variable in zip(
        tape.gradient(loss, model.trainable_variables), model.trainable_variables
    ):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))


scale = tf.Variable(0.0)  # of the loss, which ranks have of their own
model = build(slot)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05 * hvd.size()))
model.compile(optimizer, loss="mse")
whole = tf.function(lambda: tape_step(model, average=True))


def first_step():
    """Makes a step of no effect, which traces the function."""
    some, weights = samples(0, 0, 1), np.zeros(BATCH)
    model.fit(inputs[some], targets[some], sample_weight=weights, batch_size=BATCH, verbose=0)


def reset():
    resets.append(hvd.size())
    model.optimizer.learning_rate = 0.05 * hvd.size()
    first_step()


class History(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        state.history.append(hvd.size())
        if slot == 1 and state.epoch == 1 and batch == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + 60  # for worker 1 to come back
        while state.epoch == 2 and batch == 1 and hvd.size() == 1:
            assert time.monotonic() < until
            time.sleep(0.02)
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
    # Unlike the first optimizer, these are made anew in each generation.
    own = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    while state.epoch < EPOCHS:
        begin = state.epoch * STEPS + state.batch
        model.fit(batches(begin), steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
        scale.assign(1.0 + hvd.rank())
        whole()
        other = tf.keras.Variable([0.0])
        own.apply([tf.constant([1.0 + hvd.rank()])], [other])
        assert other.numpy() == -(hvd.size() + 1) / 2, other
        own = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
        state.history.append(-hvd.size())
        state.commit()


first_step()
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
alone.compile(tf.keras.optimizers.SGD(), loss="mse")
alone.set_weights(state.weights)
step = 0
for size in state.history:
    if size < 0:
        scale.assign(np.mean(1.0 + np.arange(-size)))
        tape_step(alone, average=False)
        continue
    alone.optimizer.learning_rate = 0.05 * size
    chosen = np.concatenate([samples(step, r, size) for r in range(size)])
    alone.train_on_batch(inputs[chosen], targets[chosen])
    step += 1
assert step == STEPS * EPOCHS, step
for one, other in zip(model.get_weights(), alone.get_weights()):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
print("the same as alone", flush=True)
