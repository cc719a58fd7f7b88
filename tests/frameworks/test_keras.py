"""herring.keras in real jobs: every case of keras_cases.py on each backend, and the example."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("keras") is None:
    pytest.skip("needs keras", allow_module_level=True)

from cases import check, check_example, jobs, listed, without

SCRIPT = "keras_cases.py"
BACKENDS = [b for b in ("tensorflow", "jax", "torch") if importlib.util.find_spec(b)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", listed(SCRIPT))
@pytest.mark.timeout(1000)
def test_case(backend: str, case: str) -> None:
    check(SCRIPT, "two-nodes", case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.timeout(400)
def test_example(backend: str) -> None:
    pytest.importorskip("sklearn")
    check_example("keras_digits.py", ["--epochs", "2"], "bit-identical", backend)


FIT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import herring.keras

herring.init()
x = np.ones((64, 4), np.float32)

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global start
        if batch == 20:
            start = time.time()
            if herring.rank() == int(os.environ["VICTIM"]):
                os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(herring.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
try:
    model.fit(x, x[:, :1], batch_size=1, epochs=100000, verbose=0, callbacks=[Dies()])
except Exception as error:
    assert "rank 1" in str(error) and "PeerLostError" in type(error).__name__ + str(error), error
    print(f"learned in {time.time() - start:.2f} s", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.timeout(300)
def test_a_rank_dies_inside_fit(backend: str) -> None:
    seconds, output = jobs().seconds_until_known(
        ["-n", "3", "--nodes", "3"], FIT, victim=1, survivors=2, KERAS_BACKEND=backend
    )
    assert seconds < 10, output


@pytest.mark.timeout(90)
def test_without_it() -> None:
    assert install_command("keras") in without("keras", "herring.keras")
