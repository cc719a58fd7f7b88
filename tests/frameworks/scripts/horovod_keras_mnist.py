"""A script for Keras as Horovod's users write it, on synthetic digits."""

import os

import keras
import numpy as np

if os.environ.get("OF_TENSORFLOW"):
    import horovod.tensorflow.keras as hvd
else:
    import horovod.keras as hvd

# Horovod: initialize Horovod.
hvd.init()

rng = np.random.default_rng(0)
centers = rng.normal(size=(10, 28, 28, 1)).astype(np.float32)
labels = rng.integers(0, 10, 640)
images = centers[labels] + rng.normal(size=(640, 28, 28, 1)).astype(np.float32) / 2
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]

model = keras.Sequential(
    [
        keras.layers.Input((28, 28, 1)),
        keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: adjust learning rate based on number of GPUs.
scaled_lr = 0.001 * hvd.size()
opt = keras.optimizers.Adam(scaled_lr)

# Horovod: add Horovod Distributed Optimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: using `lr = 1.0 * hvd.size()` from the very beginning leads to worse accuracy.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]
# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.TerminateOnNaN())
verbose = 1 if hvd.rank() == 0 else 0

history = model.fit(
    images, labels, batch_size=32, epochs=4, verbose=verbose, callbacks=callbacks
).history
everyone = hvd.allgather_object([w.tobytes() for w in model.get_weights()])
assert everyone[0] == everyone[-1]
if hvd.rank() == 0:
    assert history["loss"][-1] < history["loss"][0] / 2, history
    print("weights of all ranks are the same")
