"""XLA's calls to Herring for JAX programs on GPUs of the stand-in for CUDA's driver.

The tests do not need JAX, because they make XLA's calls themselves (`xla_programs`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpus import ENVIRONMENT, UNPINNED
from jobs import LAYOUTS, expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN

# All timeouts are longer than a job may take, so none of them ends a wait.
LONG = {"HERRING_HEARTBEAT_TIMEOUT": "600", "HERRING_TIMEOUT": "600"}

# The first lines of a short script whose programs run on GPUs; they join the job.
PROGRAMS = """
from herring import _core
from xla_job import Program, array, driver, rank, size
"""


@pytest.mark.parametrize("layout", ["alone", "one-node", "colocated-servers", "dedicated-servers"])
def test_programs_on_gpus_go_on_by_their_stream(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("xla_collectives"), **ENVIRONMENT))


def test_programs_on_a_gpu_meet_those_on_the_host() -> None:
    script = """
values = np.random.default_rng(rank).standard_normal(50_000).astype(np.float32)
reference = herring.allreduce(values.copy(), "average")
if rank == 0:
    mine = array(values)
    program = Program(mine)
    assert program.start("k", [mine], [mine], op="average") is None
    assert program.finish("k", [mine]) is None
    found = mine.get()
else:
    found = np.empty_like(values)
    one = lambda a: (a.view(np.uint8), "float32", 4, a.shape)
    _core.jax.run("allreduce", "k", "average", 0, "", 0, 1.0, 1.0, 0.0, "", [one(values)],
                  [one(found)])
assert (found.view(np.uint32) == reference.view(np.uint32)).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], PROGRAMS + script, **ENVIRONMENT))


def test_a_host_runs_ahead_of_its_gpu_by_two_executions_of_a_call() -> None:
    expect_success(run_job(["-n", "2"], program("xla_ahead"), JITTER="0", **ENVIRONMENT))


# The program has already ended when the failure is known, so the next call reports it.
@pytest.mark.parametrize("how", ["dies", "dies early", "disagrees", "is late"])
def test_what_fails_behind_a_program_is_nan_and_told_by_the_next_call(
    how: str, tmp_path: Path
) -> None:
    settings = {"FOLDER": str(tmp_path), "JITTER": "0", **LONG, **ENVIRONMENT}
    job = run_job(["-n", "2", "--keep-going"], program("xla_failures"), HOW=how, **settings)
    assert job.stdout.count("told:") == (1 if how.startswith("dies") else 2), job.stdout
    if "are undefined" in job.stdout:
        assert "'k': the results on GPU" in job.stdout


# There the call itself reports the failure, as the host waits for results.
@pytest.mark.parametrize("how", ["dies", "is late"])
def test_what_fails_is_told_where_no_memory_can_be_pinned(how: str, tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), "JITTER": "0", **UNPINNED, **LONG, **ENVIRONMENT}
    job = run_job(["-n", "2", "--keep-going"], program("xla_failures"), HOW=how, **settings)
    assert job.stdout.count("told:") == (1 if how == "dies" else 2), job.stdout


@pytest.mark.parametrize(
    "function", ["cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuStreamWaitValue32"]
)
def test_a_driver_that_refuses_a_call_is_an_error_of_the_program(function: str) -> None:
    settings = {"FUNCTION": function, "JITTER": "0", **LONG, **ENVIRONMENT}
    job = run_job(["-n", "2"], program("xla_driver_fails"), **settings)
    assert expect_success(job).count("all right") == 2


def test_a_program_inside_a_capture_or_off_the_gpu_is_refused_for_all(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), "JITTER": "0", **ENVIRONMENT}
    expect_success(run_job(["-n", "2"], program("xla_refused"), **settings))
