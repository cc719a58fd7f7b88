"""Runs every case of horovod_keras_cases.py in real jobs on each backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from herring.base.parts import install_command

if importlib.util.find_spec("keras") is None:
    pytest.skip("needs keras", allow_module_level=True)

from cases import HERE, check, check_script, jobs, listed, without

SCRIPT = "horovod_keras_cases.py"
BACKENDS = [b for b in ("tensorflow", "jax", "torch") if importlib.util.find_spec(b)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", listed(SCRIPT))
def test_case(backend: str, case: str) -> None:
    check(SCRIPT, "two-nodes", case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unchanged_script(backend: str) -> None:
    check_script(
        "horovod_keras_mnist.py", "weights of all ranks are the same", KERAS_BACKEND=backend
    )


def test_unchanged_script_of_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    text = "weights of all ranks are the same"
    check_script("horovod_keras_mnist.py", text, OF_TENSORFLOW="1", KERAS_BACKEND="tensorflow")


def test_elastic_workers_die_and_come_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    job = jobs().run_job(
        ["-n", "2", "--elastic", "--horovod"],
        jobs().program("horovod_keras_elastic", str(tmp_path), folder=HERE / "programs"),
        KERAS_BACKEND="tensorflow",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    output = jobs().expect_success(job)
    assert "resets [1, 2], " in output and "resets [], " in output, output
    assert "the same as alone" in output, output


@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_workers_die_and_come_back_on_each_backend(backend: str, tmp_path: Path) -> None:
    job = jobs().run_job(
        ["-n", "2", "--elastic", "--horovod"],
        jobs().program("horovod_keras_elastic_any", str(tmp_path), folder=HERE / "programs"),
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    output = jobs().expect_success(job)
    assert "resets [1, 2], " in output and "resets [], " in output, output
    assert "the same as alone" in output, output


def test_without_it() -> None:
    assert install_command("keras") in without("keras", "herring.horovod.keras")
