"""A GPU that is lost in the middle of a step, as if it had fallen off the bus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpus import ENVIRONMENT, TORCH_ENVIRONMENT
from jobs import expect_success, program, run_job
from standin import STANDIN

pytestmark = [pytest.mark.timeout(300), STANDIN]

# Errors come within 2 s. On a busy machine the end of a process takes longer.
SECONDS = 5.0
LATE = 3.0  # how long rank 2 stays away if rank 0 loses its GPU while it waits


def expect_errors(script: str, moment: int, *names: int, **settings: str) -> str:
    """Lets rank 0 lose its GPU; each rank must get a typed error and end soon.

    Args:
      script: one of the programs that make steps.
      moment: see the programs.
      *names: ranks whose error must name the GPU.
      **settings: environment variables.

    Returns:
      What the ranks say.
    """
    memory = Path("/dev/shm")
    before = {path for path in memory.glob("*") if "herring" in path.name}
    job = run_job(
        ["-n", "3", "--nodes", "2", "--keep-going"],
        program(script),
        timeout=200,
        MOMENT=str(moment),
        STANDIN_PEERS="1",
        JITTER="0",
        **settings,
    )
    said = expect_success(job)
    for rank in range(3):
        named = ".*GPU 0: cu\\w+ failed: unspecified launch" if rank in names else ""
        assert re.search(rf"rank {rank}: \w+Error in step \d: {named}", said), said
        assert seconds_of(rank, "ends", said) < SECONDS + (LATE if moment == 0 else 0), said
    assert {path for path in memory.glob("*") if "herring" in path.name} == before
    return said


def seconds_of(rank: int, what: str, said: str) -> float:
    took = re.search(rf"rank {rank}: {what} after ([\d.]+) s", said)
    assert took is not None, said
    return float(took[1])


def expect_nobody_waited(said: str) -> None:
    """Ranks 0 and 1 must have heard of the loss before rank 2 has come."""
    for rank in (0, 1):
        assert seconds_of(rank, "knows", said) < LATE, said


@pytest.mark.parametrize("stage", ["host", "staged", "ipc"])
def test_in_a_planned_round_all_ranks_get_an_error_that_names_it(stage: str) -> None:
    settings = {"CALLS": "rounds", "HERRING_NODE_STAGE": stage, **ENVIRONMENT}
    expect_nobody_waited(expect_errors("gpu_steps", 0, 0, 1, 2, **settings))
    for moment in (3, 40):
        expect_errors("gpu_steps", moment, 0, 1, 2, **settings)


@pytest.mark.parametrize("calls", ["allreduces", "lists", "broadcasts", "butterfly", "casts"])
def test_in_a_call_all_ranks_get_an_error_that_names_it(calls: str) -> None:
    expect_nobody_waited(expect_errors("gpu_steps", 0, 0, 1, 2, CALLS=calls, **ENVIRONMENT))


# The call is refused. Who comes to it when the others have left is told that they have.
@pytest.mark.parametrize("calls", ["allreduces", "butterfly"])
def test_as_a_call_begins_all_ranks_get_an_error(calls: str) -> None:
    expect_errors("gpu_steps", 7, 0, CALLS=calls, **ENVIRONMENT)


@pytest.mark.parametrize(
    "calls", ["ddp", "all_gather", "reduce_scatter", "broadcast", "all_reduce"]
)
def test_in_torchs_backend_all_ranks_get_an_error_that_names_it(calls: str) -> None:
    pytest.importorskip("torch")
    said = expect_errors("backend_steps", 0, 0, 1, 2, CALLS=calls, **TORCH_ENVIRONMENT)
    if calls != "ddp":  # there, torch's C++ waits, which asks no driver
        expect_nobody_waited(said)


@pytest.mark.parametrize(("victim", "stage", "moment"), [(0, "host", 50), (1, "ipc", 20)])
def test_an_elastic_job_goes_on_without_it(
    victim: int, stage: str, moment: int, tmp_path: Path
) -> None:
    job = run_job(
        ["--elastic", "-n", "3", "--min-workers", "2"],
        program("elastic_on_gpus", str(tmp_path / "lost")),
        VICTIM=str(victim),
        MOMENT=str(moment),
        HERRING_NODE_STAGE=stage,
        STANDIN_PEERS="1",
        STANDIN_DEVICES="3",
        **ENVIRONMENT,
    )
    said = job.stdout
    assert f"herring.errors.DeviceError: GPU {victim}: " in said, said
    assert len(re.findall(r"trained in generation [23]", said)) >= 2, said
