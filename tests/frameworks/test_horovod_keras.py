"""Runs every case of horovod_keras_cases.py in real jobs on each backend."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("keras") is None:
    pytest.skip("needs keras", allow_module_level=True)

from cases import check, check_script, listed, without

SCRIPT = "horovod_keras_cases.py"
BACKENDS = [b for b in ("tensorflow", "jax", "torch") if importlib.util.find_spec(b)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", listed(SCRIPT))
@pytest.mark.timeout(1000)
def test_case(backend: str, case: str) -> None:
    check(SCRIPT, "two-nodes", case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.timeout(300)
def test_unchanged_script(backend: str) -> None:
    check_script(
        "horovod_keras_mnist.py", "weights of all ranks are the same", KERAS_BACKEND=backend
    )


@pytest.mark.timeout(300)
def test_unchanged_script_of_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    text = "weights of all ranks are the same"
    check_script("horovod_keras_mnist.py", text, OF_TENSORFLOW="1", KERAS_BACKEND="tensorflow")


@pytest.mark.timeout(90)
def test_without_it() -> None:
    assert install_command("keras") in without("keras", "herring.horovod.keras")
