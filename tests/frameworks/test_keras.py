"""Runs every case of keras_cases.py and keras_rounds_cases.py on each backend, and the example."""

from __future__ import annotations

import importlib.util
import re

import pytest

from herring.base.parts import install_command

if importlib.util.find_spec("keras") is None:
    pytest.skip("needs keras", allow_module_level=True)

from cases import HERE, check, check_example, jobs, listed, without

SCRIPT, OF_ROUNDS = "keras_cases.py", "keras_rounds_cases.py"
BACKENDS = [b for b in ("tensorflow", "jax", "torch") if importlib.util.find_spec(b)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", listed(SCRIPT))
def test_case(backend: str, case: str) -> None:
    check(SCRIPT, "two-nodes", case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", listed(OF_ROUNDS))
def test_partial_rounds(backend: str, case: str) -> None:
    check(OF_ROUNDS, "three-nodes", case, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_example(backend: str) -> None:
    pytest.importorskip("sklearn")
    check_example("keras_digits.py", ["--epochs", "2"], "bit-identical", backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_dies_inside_fit(backend: str) -> None:
    jobs().expect_known(
        ["-n", "3", "--nodes", "3"],
        jobs().program("keras_death", folder=HERE / "programs"),
        victim=1,
        survivors=2,
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_dies_in_partial_rounds(backend: str) -> None:
    job = jobs().run_job(
        ["-n", "3", "--nodes", "2", "--servers", "2", "--keep-going"],
        jobs().program("keras_rounds_death", folder=HERE / "programs"),
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    told = re.findall(r"survivor \d has (\S+)", job.stdout)
    assert len(told) == 2 and len(set(told)) == 1, job.stdout[-4000:]


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_elastic_training_is_that_of_its_contributors(backend: str) -> None:
    """A worker dies in the middle of an epoch. The step that it leaves is made again without it."""
    pytest.importorskip(backend)
    job = jobs().run_job(
        ["-n", "2", "--elastic", "--restarts", "0"],
        jobs().program("keras_elastic", folder=HERE / "programs"),
        KERAS_BACKEND=backend,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    output = jobs().expect_success(job)
    assert "sizes [2, 1], " in output, output
    assert "the same as alone" in output, output


def test_without_it() -> None:
    assert install_command("keras") in without("keras", "herring.keras")
