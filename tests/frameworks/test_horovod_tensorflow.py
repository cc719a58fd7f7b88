"""Tests herring.horovod.tensorflow in real jobs: every case of three scripts, and more."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from herring.base.parts import install_command

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("needs tensorflow", allow_module_level=True)

from cases import HERE, LAYOUTS, check, check_script, jobs, listed, without

GRAPHS = "horovod_tensorflow_graph_cases.py"
# Cases by script that depend on the number of ranks being a power of two, or on the layout.
OF_THREE = {
    "horovod_tensorflow_cases.py": ("every_dtype", "adasum", "gradients"),
    "horovod_tensorflow_training_cases.py": ("joins", "sync_batch_norm"),
}


@pytest.mark.parametrize(
    ("script", "layout", "case"),
    [(script, "two-nodes", case) for script in OF_THREE for case in listed(script)]
    + [(script, "three", case) for script, cases in OF_THREE.items() for case in cases],
)
def test_case(script: str, layout: str, case: str) -> None:
    LAYOUTS["three"] = ["-n", "3"]
    check(script, layout, case, cases=OF_THREE[script] if layout == "three" else ())


@pytest.mark.parametrize("case", listed(GRAPHS))
def test_graph(case: str) -> None:
    check(GRAPHS, "two-nodes", case)


def test_unchanged_script() -> None:
    check_script("horovod_tensorflow2_mnist.py", "weights of all ranks are the same")


@pytest.mark.parametrize("waiting", ["threads", "session"])
def test_collectives_wait_in_any_order(waiting: str) -> None:
    """TensorFlow has one thread for operations, and ranks need collectives in different orders."""
    code = jobs().program(f"horovod_tensorflow_{waiting}", folder=HERE / "programs")
    done = jobs().run_job(["-n", "2"], code, TF_CPP_MIN_LOG_LEVEL="3")
    jobs().expect_success(done)


def test_a_rank_dies() -> None:
    jobs().expect_known(
        ["-n", "3", "--nodes", "3"],
        jobs().program("horovod_tensorflow_death", folder=HERE / "programs"),
        victim=1,
        survivors=2,
        TF_CPP_MIN_LOG_LEVEL="3",
    )


@pytest.mark.timeout(150)
def test_every_error_can_be_pickled_and_copied() -> None:
    code = jobs().program("errors_travel")
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, timeout=145)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_it() -> None:
    assert install_command("tensorflow") in without("tensorflow", "herring.horovod.tensorflow")
