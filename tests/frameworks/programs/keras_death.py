"""A rank is killed inside fit(); the other ranks print when they learn of it."""

import os
import signal

import keras
import numpy as np

import herring
import herring.keras

herring.init()
x = np.ones((64, 4), np.float32)


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20 and herring.rank() == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)


model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(herring.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
try:
    model.fit(x, x[:, :1], batch_size=1, epochs=100000, verbose=0, callbacks=[Dies()])
except Exception as error:
    assert "rank 1" in str(error) and "PeerLostError" in type(error).__name__ + str(error), error
    print("has learned of it", flush=True)
