"""Trains a linear model with TensorFlow on any number of workers, in a custom training loop.

herring run -n 2 -- python examples/tensorflow_step.py
"""

import numpy as np
import tensorflow as tf

import herring.tensorflow as herring

BATCH = 48  # Samples per step, of all workers together.


def main() -> None:
    herring.init()
    rank, size = herring.rank(), herring.size()
    random = np.random.default_rng(rank)  # Each worker starts with different weights.
    weights = tf.Variable(random.normal(size=(10, 1)).astype(np.float32))
    bias = tf.Variable(tf.zeros([1]))
    herring.broadcast_variables([weights, bias])

    @tf.function
    def step(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            errors = inputs @ weights + bias - tf.reduce_sum(inputs, axis=1, keepdims=True)
            loss = tf.reduce_mean(tf.square(errors))
        tape = herring.DistributedGradientTape(tape)
        for variable, gradient in zip((weights, bias), tape.gradient(loss, [weights, bias])):
            variable.assign_sub(0.1 * gradient)
        return loss

    data = np.random.default_rng(0)
    for count in range(60):
        inputs = data.normal(size=(BATCH, 10)).astype(np.float32)
        loss = step(tf.constant(inputs[rank * BATCH // size : (rank + 1) * BATCH // size]))
        mean = herring.allreduce(loss)
        if rank == 0 and count % 20 == 19:
            print(f"step {count + 1}: loss {mean.numpy():.2e}")
    values = weights.numpy().tobytes() + bias.numpy().tobytes()
    same = len(set(herring.allgather_object(values))) == 1
    if rank == 0:
        print(f"variables of all ranks: {'bit-identical' if same else 'different'}")


if __name__ == "__main__":
    main()
