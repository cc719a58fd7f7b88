"""Rank 1 dies inside fit() with partial rounds; the others go on without it, and end alike."""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np

import herring
import herring.keras

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "programs"))
from support import stay_until_all_know

herring.init()
rank = herring.rank()


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.001 * rank)
        if rank == 1 and batch == 7:
            os.kill(os.getpid(), signal.SIGKILL)


model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, use_bias=False)])
model.layers[0].kernel.assign(np.zeros((3, 1), np.float32))
optimizer = herring.keras.DistributedOptimizer(
    keras.optimizers.SGD(1.0), op="sum", sync=herring.Quorum(2)
)
model.compile(optimizer, loss=lambda _, found: keras.ops.sum(found))
x = np.full((20, 3), 100.0**rank, np.float32)
callbacks = [herring.keras.FlushCallback(), Dies()]
model.fit(x, x[:, :1], batch_size=1, verbose=0, callbacks=callbacks)
((lost, counted, _),) = optimizer.statistics.lost
assert lost == 1 and counted <= 8, optimizer.statistics.lost
weight = np.asarray(keras.ops.convert_to_numpy(model.weights[0]))
expected = -(20 + 20 * 100.0**2 + counted * 100.0)
assert (weight == expected).all(), (weight, expected)
try:
    herring.barrier()
except herring.PeerLostError as error:
    assert "rank 1" in str(error), error
    print(f"survivor {rank} has {weight[0, 0]}", flush=True)
stay_until_all_know(rank, [0, 2])
