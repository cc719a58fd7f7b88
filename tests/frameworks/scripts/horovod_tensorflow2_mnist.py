"""A training loop for TensorFlow 2 as Horovod's users write it, on synthetic digits."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

rng = np.random.default_rng(0)
centers = rng.normal(size=(10, 28, 28, 1)).astype(np.float32)
labels = rng.integers(0, 10, 640)
images = centers[labels] + rng.normal(size=(640, 28, 28, 1)).astype(np.float32) / 2
dataset = tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int64)))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(1000, seed=1).batch(32)

mnist_model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on number of GPUs.
opt = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))

    # Horovod: broadcast initial variable states from rank 0 to all other processes, after the first
    # gradient step to ensure optimizer initialization.
    if first_batch:
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)

    return loss_value


# Horovod: adjust number of steps based on number of GPUs.
losses = []
for batch, (images, labels) in enumerate(dataset.take(60 // hvd.size())):
    losses.append(float(training_step(images, labels, batch == 0)))

    if batch % 10 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {losses[-1]:.6f}")

average = hvd.allreduce(tf.constant(losses[-1]), name="loss")
everyone = hvd.allgather_object([w.tobytes() for w in mnist_model.get_weights()])
assert everyone[0] == everyone[-1]
if hvd.rank() == 0:
    assert float(average) < losses[0] / 2, (losses, float(average))
    print("weights of all ranks are the same")
