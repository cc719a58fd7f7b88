"""A GPU that is lost in the middle of a step, as if it had fallen off the bus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpus import ENVIRONMENT, TORCH_ENVIRONMENT
from jobs import expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN


def expect_errors(script: str, moment: int, folder: Path, *names: int, **settings: str) -> None:
    """Lets rank 0 lose its GPU; each rank must get a typed error and end.

    All timeouts are longer than the job may take, so only news of the loss ends a wait. If
    `moment` is 0, the last rank comes only when the others know.

    Args:
      script: one of the programs that make steps.
      moment: see the programs.
      folder: where the ranks tell each other what they know.
      *names: ranks whose error must name the GPU.
      **settings: environment variables.
    """
    job = run_job(
        ["-n", "3", "--nodes", "2", "--keep-going"],
        program(script),
        MOMENT=str(moment),
        FOLDER=str(folder),
        STANDIN_PEERS="1",
        JITTER="0",
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
        **settings,
    )
    said = expect_success(job)
    for rank in range(3):
        named = ".*GPU 0: cu\\w+ failed: unspecified launch" if rank in names else ""
        assert re.search(rf"rank {rank}: \w+Error in step \d: {named}", said), said


@pytest.mark.parametrize("stage", ["host", "staged", "ipc"])
def test_in_a_planned_round_all_ranks_get_an_error_that_names_it(
    stage: str, tmp_path: Path
) -> None:
    settings = {"CALLS": "rounds", "HERRING_NODE_STAGE": stage, **ENVIRONMENT}
    for moment in (0, 3, 40):
        expect_errors("gpu_steps", moment, tmp_path, 0, 1, 2, **settings)


@pytest.mark.parametrize("calls", ["allreduces", "lists", "broadcasts", "butterfly", "casts"])
def test_in_a_call_all_ranks_get_an_error_that_names_it(calls: str, tmp_path: Path) -> None:
    expect_errors("gpu_steps", 0, tmp_path, 0, 1, 2, CALLS=calls, **ENVIRONMENT)


# The call is refused. Who comes to it when the others have left is told that they have.
@pytest.mark.parametrize("calls", ["allreduces", "butterfly"])
def test_as_a_call_begins_all_ranks_get_an_error(calls: str, tmp_path: Path) -> None:
    expect_errors("gpu_steps", 7, tmp_path, 0, CALLS=calls, **ENVIRONMENT)


@pytest.mark.parametrize(
    "calls", ["ddp", "all_gather", "reduce_scatter", "broadcast", "all_reduce"]
)
def test_in_torchs_backend_all_ranks_get_an_error_that_names_it(calls: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    expect_errors("backend_steps", 0, tmp_path, 0, 1, 2, CALLS=calls, **TORCH_ENVIRONMENT)


def test_it_is_noticed_if_it_is_lost_before_it_comes_to_the_call(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = {**TORCH_ENVIRONMENT, "STANDIN_JITTER": "300000", "CALLS": "ddp"}  # microseconds
    expect_errors("backend_steps", 0, tmp_path, 0, 1, 2, **settings)


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
