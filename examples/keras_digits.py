"""Trains a small network on handwritten digits with Keras, on any of its backends.

KERAS_BACKEND=tensorflow herring run -n 2 -- python examples/keras_digits.py
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import herring.keras as herring

BATCH = 64  # Samples per step, of all workers together.


def network() -> keras.Model:
    layers = [
        keras.layers.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--save", help="write the model to this file (.keras)")
    arguments = parser.parse_args()

    herring.init()
    rank, size = herring.rank(), herring.size()
    digits = load_digits()
    inputs = (digits.data / 16).astype("float32")
    labels = digits.target.astype("int32")
    each = 1500 // size  # All workers have the same number of batches.
    mine = slice(rank * each, (rank + 1) * each)

    keras.utils.set_random_seed(rank)  # Each worker starts with different weights.
    model = network()
    rate = 0.002 * size
    model.compile(
        optimizer=herring.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        herring.BroadcastGlobalVariablesCallback(),
        herring.MetricAverageCallback(),
        herring.LearningRateWarmupCallback(rate, warmup_epochs=1),
    ]
    if arguments.save:
        callbacks += herring.on_root(lambda: keras.callbacks.ModelCheckpoint(arguments.save))
    model.fit(
        inputs[mine],
        labels[mine],
        batch_size=BATCH // size,
        epochs=arguments.epochs,
        callbacks=callbacks,
        verbose=2 if rank == 0 else 0,
    )
    _, accuracy = model.evaluate(inputs[1500:], labels[1500:], verbose=0)
    values = [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in model.weights]
    same = len(set(map(tuple, herring.allgather_object(values)))) == 1
    if rank == 0:
        print(f"accuracy on held-out digits: {accuracy:.3f}")
        print(f"weights of all ranks: {'bit-identical' if same else 'different'}")


if __name__ == "__main__":
    main()
