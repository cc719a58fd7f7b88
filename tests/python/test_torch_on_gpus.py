"""Runs the cases of torch's adapters with all tensors on a GPU of the stand-in driver."""

from __future__ import annotations

import functools
import shlex

import pytest

pytest.importorskip("torch")

import backend_cases
import horovod_cases
import torch_cases
from batches import RUNS_IN_TURN, herring_run, outcomes
from gpus import BY_KERNELS, FOLDER, TORCH_ENVIRONMENT
from jobs import expect_success, program, run_job

# Version counters of tensors cannot be seen there, and compiling does not depend on the device.
WRAPPERS = [
    case for case in torch_cases.CASES if "compiled" not in case and case != "modified_in_place"
]
TRAINING = ["equals_one_process", "wire_dtype", "unused_parameters", "no_sync", "grad_views"]
TRAINING += ["mixed_dtypes", "order_differs", "optimizer_equals_ddp", "gradual_unfreezing"]
BACKEND = list(backend_cases.CASES)
HOROVOD = list(horovod_cases.CASES)


@functools.cache
def run_all(cases: str) -> dict[str, str]:
    if cases == "backend":
        command = [*herring_run("-n", "4", "--nodes", "2"), "-m", "backend_cases"]
        command += ["--init", "herring://"]
        return outcomes(command, BACKEND, OMP_NUM_THREADS="1", **TORCH_ENVIRONMENT)
    if cases == "horovod":
        command = [*herring_run("-n", "4", "--nodes", "2", "--servers", "1"), "-m", "horovod_cases"]
        return outcomes(command, HOROVOD, OMP_NUM_THREADS="1", **TORCH_ENVIRONMENT)
    command = [*herring_run("-n", "3", "--nodes", "2"), "-m", "torch_cases"]
    if cases == "kernels wait":
        return outcomes(command, TRAINING, **BY_KERNELS, **TORCH_ENVIRONMENT)
    return outcomes(command, WRAPPERS, STANDIN_PEERS="1", **TORCH_ENVIRONMENT)


STANDIN = pytest.mark.skipif(
    not (FOLDER / "libcuda.so.1").exists(), reason="make test builds the stand-in"
)


@STANDIN
@pytest.mark.parametrize(
    ("cases", "case"),
    [
        *(("wrappers", case) for case in WRAPPERS),
        *(("backend", case) for case in BACKEND),
        *(("horovod", case) for case in HOROVOD),
        *(("kernels wait", case) for case in TRAINING),
    ],
)
def test_case(cases: str, case: str) -> None:
    if text := run_all(cases)[case]:
        pytest.fail(text, pytrace=False)


# Programs of the same layout share a job: each is a process that every rank forks.
TWO, APART, THREE = ("-n", "2"), ("-n", "2", "--nodes", "2"), ("-n", "3")
IN_TURN = {
    TWO: ["gpu_moved_parameters", "gpu_captured_torch", "gpu_several"],
    APART: ["gpu_horovod_bytes", "gpu_backend_bytes"],
    THREE: ["gpu_refused_round", "gpu_no_memory", "gpu_backend_bytes"],
}


@functools.cache
def run_in_turn(layout: tuple[str, ...]) -> dict[str, str]:
    programs = [shlex.join(program(name)) for name in IN_TURN[layout]]
    command = [*herring_run(*layout), str(RUNS_IN_TURN)]
    settings = {"OMP_NUM_THREADS": "1", "HERRING_TIMEOUT": "600", **TORCH_ENVIRONMENT}
    found = outcomes(command, programs, **settings)
    return dict(zip(IN_TURN[layout], (found[one] for one in programs)))


def expect_well(layout: tuple[str, ...], name: str) -> None:
    if text := run_in_turn(layout)[name]:
        pytest.fail(text, pytrace=False)


@STANDIN
def test_horovods_all_reduces_and_broadcasts_leave_tensors_on_the_gpu() -> None:
    expect_well(APART, "gpu_horovod_bytes")


@STANDIN
def test_parameters_that_have_left_the_gpu_of_their_plan_are_named() -> None:
    expect_well(TWO, "gpu_moved_parameters")


# All ranks end the rounds of several wrappers in the same order, whichever rank refuses.
@STANDIN
def test_a_round_that_one_rank_refuses_is_an_error_on_all_ranks() -> None:
    expect_well(THREE, "gpu_refused_round")


@STANDIN
def test_a_gpu_without_memory_for_the_gradients_refuses_the_wrapper_on_all_ranks() -> None:
    expect_well(THREE, "gpu_no_memory")


@STANDIN
@pytest.mark.parametrize("layout", [THREE, APART], ids=["one-node", "two-nodes"])
def test_gathers_and_scatters_of_the_backend_leave_tensors_on_the_gpu(
    layout: tuple[str, ...],
) -> None:
    expect_well(layout, "gpu_backend_bytes")


@STANDIN
def test_a_work_inside_a_capture_is_refused_before_it_waits() -> None:
    expect_well(TWO, "gpu_captured_torch")


@STANDIN
def test_tensors_of_several_gpus_in_one_list_go_by_host_memory() -> None:
    expect_well(TWO, "gpu_several")


@STANDIN
@pytest.mark.parametrize("views", ["0", "1"])
def test_a_backward_pass_that_fails_leaves_each_rank_its_own_gradients(views: str) -> None:
    job = run_job(
        ["-n", "2", "--keep-going"], program("gpu_own_gradients"), VIEWS=views, **TORCH_ENVIRONMENT
    )
    assert "own gradients\n" in job.stdout, job.stdout


@STANDIN
def test_one_rank_on_a_gpu_among_ranks_on_processors() -> None:
    job = run_job(["-n", "3", "--nodes", "2"], program("gpu_mixed_torch"), **TORCH_ENVIRONMENT)
    expect_success(job)
