"""Rounds in which GPUs add the gradients of a node, on a stand-in for CUDA's driver."""

from __future__ import annotations

import pytest

from gpu_scripts import GPUS, STAGES
from gpus import ENVIRONMENT, FOLDER
from jobs import expect_success, run_job

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(
        not (FOLDER / "libcuda.so.1").exists(),
        reason="the stand-in for CUDA's driver is not built: make test builds it",
    ),
]

STAGE_LAYOUTS = {
    "one-gpu": (["-n", "3"], "ipc", {"GPUS": "1"}),
    "two-gpus": (["-n", "3"], "staged", {}),
    "peers": (["-n", "4"], "ipc", {"STANDIN_PEERS": "1"}),
    "asked-for": (["-n", "2"], "staged", {"GPUS": "1", "HERRING_NODE_STAGE": "staged"}),
    "host": (["-n", "2"], "host", {"GPUS": "1", "HERRING_NODE_STAGE": "host"}),
    "two-nodes": (["-n", "4", "--nodes", "2"], "ipc", {"STANDIN_PEERS": "1", "NODES": "2"}),
    "two-nodes-staged": (["-n", "5", "--nodes", "2", "--servers", "1"], "staged", {"NODES": "2"}),
}


@pytest.mark.parametrize("layout", STAGE_LAYOUTS)
def test_gpus_add_with_the_bits_of_processors(layout: str) -> None:
    options, wanted, environment = STAGE_LAYOUTS[layout]
    expect_success(run_job(options, STAGES, WANTED=wanted, **environment, **ENVIRONMENT))


def test_a_stage_that_is_not_to_be_had_is_said() -> None:
    job = run_job(["-n", "2"], STAGES, WANTED="staged", HERRING_NODE_STAGE="ipc", **ENVIRONMENT)
    said = expect_success(job)
    assert "'gpu': HERRING_NODE_STAGE is ipc, which this node cannot have; it is staged" in said
