"""``algorithm="cuda-butterfly"`` where GPUs of a node read each other, on the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpus import ENVIRONMENT, GPUS
from jobs import expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN

# All timeouts are longer than a job may take, so none of them ends a wait.
LONG = {"HERRING_HEARTBEAT_TIMEOUT": "600", "HERRING_TIMEOUT": "600"}

NODES = ["--nodes", "2"]
PEERS = {"STANDIN_PEERS": "1", "PEERS": "1"}
LAYOUTS = {
    "two": (["-n", "2"], {"OUT": "0", **PEERS}),
    "three": (["-n", "3"], {"OUT": "0", **PEERS}),
    "four": (["-n", "4"], {"OUT": "0", **PEERS}),
    "five": (["-n", "5"], {"OUT": "0", **PEERS}),
    "two-nodes": (["-n", "4", *NODES], {"OUT": "1", **PEERS}),
    "uneven-nodes": (["-n", "5", *NODES], PEERS),
    "one-gpu": (["-n", "3"], {"GPUS": "1", "OUT": "0", "PEERS": "1"}),
    # Ranks 0 and 2 share a GPU, and so do ranks 1 and 3.
    "some-reach-each-other": (["-n", "4"], {"OUT": "0.5", "PEERS": "1"}),
    "nobody-reaches": (["-n", "2"], {"OUT": "1", "PEERS": "0"}),
    "alone-on-nodes": (["-n", "2", *NODES], {"OUT": "1", "PEERS": "0", "STANDIN_PEERS": "1"}),
    "asked-not-to": (
        ["-n", "2"],
        {"OUT": "1", "STANDIN_PEERS": "1", "PEERS": "0", "HERRING_NODE_STAGE": "staged"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_of_the_host_and_no_copies_where_gpus_reach_each_other(layout: str) -> None:
    options, environment = LAYOUTS[layout]
    expect_success(run_job(options, program("butterfly_peers"), **environment, **ENVIRONMENT))


@pytest.mark.parametrize("unread", ["cuIpcGetMemHandle", "cuIpcOpenMemHandle"])
def test_what_cannot_be_exported_or_mapped_goes_through_host_memory(unread: str) -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            program("butterfly_peers"),
            STANDIN_FAIL=f"{unread}:1:2:always",
            STANDIN_PEERS="1",
            PEERS="0",
            **ENVIRONMENT,
        )
    )


@pytest.mark.parametrize("size", ["2", "4"])
def test_many_at_a_time(size: str) -> None:
    expect_success(
        run_job(["-n", size], program("butterfly_many"), STANDIN_PEERS="1", **ENVIRONMENT)
    )


def test_ranks_that_differ_in_what_they_have_go_through_host_memory() -> None:
    script = """
for step in range(8):
    values = np.full(300_000, rank + step, np.float32)
    on_host = rank == 1 and step % 2
    array = values if on_host else GpuArray(values, rank % gpus)
    herring.allreduce(array, "sum", algorithm="butterfly" if on_host else "cuda-butterfly")
    found = array if on_host else array.get()
    assert (found == sum(r + step for r in range(size))).all(), step
read = herring.stats()["gpu_peer_sums"]
# With rank 1 on its GPU, all read. Otherwise ranks 0 and 2 read each other.
assert read >= (1 if rank == 1 else 3), read
herring.shutdown()
"""
    expect_success(run_job(["-n", "4"], GPUS + script, STANDIN_PEERS="1", **ENVIRONMENT))


def test_ranks_that_differ_in_their_setting_go_through_host_memory() -> None:
    script = """
os.environ["HERRING_NODE_STAGE"] = "auto" if os.environ["RANK"] == "0" else "staged"
from gpu_job import GpuArray, gpus, rank, size
for step in range(6):
    array = GpuArray(np.full(300_000, rank + step, np.float32), rank % gpus)
    herring.allreduce(array, "sum", algorithm="cuda-butterfly")
    assert (array.get() == sum(r + step for r in range(size))).all(), step
assert herring.stats()["gpu_sums"] == 6 and herring.stats()["gpu_peer_sums"] == 0
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], script, STANDIN_PEERS="1", **ENVIRONMENT))


@pytest.mark.parametrize("moment", ["before", "announced", "moving"])
@pytest.mark.parametrize("how", ["dies", "leaves"])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_who_ends_in_the_middle_parks_nobody(
    how: str, moment: str, nodes: str, tmp_path: Path
) -> None:
    layout = ["-n", "4", "--nodes", nodes, "--keep-going"]
    job = run_job(
        layout,
        program("butterfly_ends"),
        HOW=how,
        MOMENT=moment,
        WARM="5",
        STANDIN_PEERS="1",
        FOLDER=str(tmp_path),
        **LONG,
        **ENVIRONMENT,
    )
    assert how == "dies" or job.returncode == 0, job.stdout
    assert job.stdout.count("nobody is parked") == 3, job.stdout


def test_a_group_whose_member_dies_parks_nobody_and_others_go_on(tmp_path: Path) -> None:
    layout = ["-n", "3", "--keep-going"]
    settings = {"FOLDER": str(tmp_path), **LONG, **ENVIRONMENT}
    job = run_job(layout, program("butterfly_group_death"), WARM="5", **settings)
    assert job.stdout.count("done without it") == 2, job.stdout


@pytest.mark.parametrize("late", ["rank", "gpu"])
def test_a_deadline_parks_nobody(late: str, tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), "STANDIN_PEERS": "1", **LONG, **ENVIRONMENT}
    job = run_job(["-n", "2"], program("butterfly_deadlines"), LATE=late, WARM="5", **settings)
    missing = "rank 1 (" if late == "rank" else "the GPU of this rank"
    assert f" s for {missing}" in job.stdout, job.stdout
    assert "nobody is parked" in job.stdout, job.stdout


def test_where_nothing_comes_of_a_call_its_array_is_untouched(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), "STANDIN_PEERS": "1", **ENVIRONMENT}
    expect_success(run_job(["-n", "2"], program("butterfly_untouched"), **settings))
