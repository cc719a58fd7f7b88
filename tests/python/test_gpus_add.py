"""Rounds in which GPUs add the gradients of a node, on the stand-in for CUDA's driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpus import BY_KERNELS, ENVIRONMENT, GPUS
from jobs import expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN

# All timeouts are longer than a job may take, so none of them ends a wait.
LONG = {"HERRING_HEARTBEAT_TIMEOUT": "600", "HERRING_TIMEOUT": "600"}

STAGE_LAYOUTS = {
    "one-gpu": (["-n", "3"], "ipc", {"GPUS": "1"}),
    "two-gpus": (["-n", "3"], "staged", {}),
    "peers": (["-n", "4"], "ipc", {"STANDIN_PEERS": "1"}),
    "eight-ranks": (["-n", "8"], "ipc", {"STANDIN_PEERS": "1", "DTYPES": "1"}),
    "asked-for": (["-n", "2"], "staged", {"GPUS": "1", "HERRING_NODE_STAGE": "staged"}),
    "host": (["-n", "2"], "host", {"GPUS": "1", "HERRING_NODE_STAGE": "host"}),
    "two-nodes": (["-n", "4", "--nodes", "2"], "ipc", {"STANDIN_PEERS": "1", "NODES": "2"}),
    "kernels-wait": (["-n", "3"], "ipc", {"GPUS": "1", **BY_KERNELS}),
    "kernels-wait-two-nodes": (["-n", "4", "--nodes", "2"], "staged", {"NODES": "2", **BY_KERNELS}),
    "two-nodes-staged": (["-n", "5", "--nodes", "2", "--servers", "1"], "staged", {"NODES": "2"}),
}


@pytest.mark.parametrize("layout", STAGE_LAYOUTS)
def test_gpus_add_with_the_bits_of_processors(layout: str) -> None:
    options, wanted, environment = STAGE_LAYOUTS[layout]
    expect_success(
        run_job(options, program("gpu_stages"), WANTED=wanted, **environment, **ENVIRONMENT)
    )


# A node with one rank adds nothing, and sends the note behind the gradients.
@pytest.mark.parametrize("stage", ["ipc", "staged"])
def test_notes_do_not_overtake_what_gpus_add(stage: str) -> None:
    expect_success(
        run_job(
            ["-n", "3", "--nodes", "2"],
            program("gpu_notes"),
            HERRING_NODE_STAGE=stage,
            STANDIN_PEERS="1",
            **ENVIRONMENT,
        )
    )


@pytest.mark.parametrize("layout", ["one-gpu", "host", "two-nodes", "two-nodes-staged"])
def test_gpus_cast_gradients_to_the_wire_dtype(layout: str) -> None:
    options, wanted, environment = STAGE_LAYOUTS[layout]
    expect_success(
        run_job(options, program("gpu_casts"), WANTED=wanted, **environment, **ENVIRONMENT)
    )


def test_processors_cast_if_a_rank_has_no_gpu_or_no_compiler() -> None:
    """All ranks agree who casts; otherwise plans would differ."""
    script = """
if rank == 2:
    herring._core.load_casts = lambda device, wire_dtype: "no CUDA compiler: none is there"
for lacking in ("GPU", "compiler"):
    on_host = lacking == "GPU" and rank == 1
    plan = herring.PlannedReduction(
        [(1000, "float32")], name=lacking, wire_dtype="bfloat16", device=None if on_host else 0
    )
    if on_host:
        arena = plan.arena(0).view(np.float32)
    else:
        arena = GpuArray(np.zeros(1000, np.float32))
        plan.place([arena])
    for step in range(4):
        plan.begin()
        if on_host:
            arena[:] = rank + step
        else:
            arena.fill(rank + step)
        plan.ready(0)
        plan.wait()
        assert ((arena if on_host else arena.get()) == step + 1).all(), step
    plan.close()
herring.shutdown()
"""
    job = run_job(["-n", "3", "--nodes", "3"], GPUS + script, **ENVIRONMENT)
    said = expect_success(job)
    assert "leave GPU 0 in 32 bits, and processors cast them to bfloat16: no CUDA compiler" in said


@pytest.mark.parametrize("layout", ["two-gpus", "two-nodes"])
def test_a_plan_that_closes_leaves_its_sums_to_neighbours_that_still_read_them(layout: str) -> None:
    options, wanted, environment = STAGE_LAYOUTS[layout]
    options = ["-n", "2"] if layout == "two-gpus" else options
    expect_success(
        run_job(
            options,
            program("gpu_sums_left"),
            WANTED=wanted,
            JITTER="0",
            **environment,
            **ENVIRONMENT,
        )
    )


@pytest.mark.parametrize("stage", ["host", "staged"])
def test_plans_that_come_and_go_do_not_pin_ever_more_memory(stage: str) -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            program("gpu_plans_in_turn"),
            JITTER="0",
            HERRING_NODE_STAGE=stage,
            **ENVIRONMENT,
        )
    )


# A view may keep the arena's memory in use; the streams that copied to it end with the plan.
def test_a_plan_that_closes_destroys_its_streams_whoever_has_its_arena() -> None:
    script = """
plan = herring.PlannedReduction([(600_000, "float32")], name="p", op="sum", device=0)
plan.place([GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))])
for _ in range(3):
    plan.begin()
    plan.ready(0)
    plan.wait()
assert plan.node_stage == "staged"
view, before = plan.arena(0), driver.calls(b"cuStreamDestroy")
plan.close()
assert driver.calls(b"cuStreamDestroy") == before + 4
del view
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, HERRING_NODE_STAGE="staged", **ENVIRONMENT))


# Copies of memory that is not pinned may make the calling thread wait for other ranks.
def test_gpus_add_only_where_memory_is_pinned() -> None:
    script = """
plan = herring.PlannedReduction([(1_000_000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
for step in range(4):
    if step == 1 and rank == 1:
        driver.fail(b"cuMemHostRegister", 1, 1, False)
    plan.begin()
    arena.fill(1)
    plan.ready(0)
    plan.wait()
    assert plan.node_stage == "host" and (arena.get()[:1_000_000] == size).all()
herring.shutdown()
"""
    said = expect_success(
        run_job(["-n", "2"], GPUS + script, HERRING_LOG_LEVEL="info", **ENVIRONMENT)
    )
    assert "processors add for GPU 0: memory for copies cannot be pinned" in said, said


# If one rank cannot load its kernels, processors add on all ranks, with the right sums.
@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuLaunchKernel", "cuMemAlloc"])
def test_ranks_fall_back_together_where_one_cannot_load_its_kernels(function: str) -> None:
    script = """
plan = herring.PlannedReduction([(300_000, "float32")] * 2, name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
for step in range(6):
    if step == 1 and rank == 1:
        driver.fail(os.environ["FUNCTION"].encode(), 1, 719, False)
    plan.begin()
    arena.fill(rank + step, 1000)
    plan.ready_all([1, 0])
    plan.wait()
    assert plan.node_stage == "host", (rank, step)
    assert (arena.get()[:600_000] == sum(r + step for r in range(size))).all()
assert rank != 1 or driver.failed() == os.environ["FUNCTION"].encode(), driver.failed()
plan.close()
herring.shutdown()
"""
    said = expect_success(
        run_job(
            ["-n", "3"], GPUS + script, HERRING_LOG_LEVEL="info", FUNCTION=function, GPUS="1",
            **ENVIRONMENT,
        )
    )  # fmt: skip
    assert "'p': processors add for GPU 0: GPU 0: " in said, said


# On two nodes, GPUs also give what has come from the network to their neighbours.
@pytest.mark.parametrize(("stage", "nodes"), [("ipc", 1), ("staged", 1), ("ipc", 2)])
@pytest.mark.parametrize("moment", ["made", "begun", "some out", "all out"])
@pytest.mark.parametrize("how", ["dies", "leaves", "closes"])
def test_who_ends_in_a_round_that_gpus_add_parks_nobody(
    how: str, moment: str, stage: str, nodes: int, tmp_path: Path
) -> None:
    job = run_job(
        ["-n", str(2 * nodes), "--nodes", str(nodes), "--keep-going"],
        program("gpu_sums_end"),
        HOW=how,
        MOMENT=moment,
        STAGE=stage,
        HERRING_NODE_STAGE="auto" if stage == "ipc" else stage,
        FOLDER=str(tmp_path),
        **LONG,
        **ENVIRONMENT,
    )
    assert how == "dies" or job.returncode == 0, job.stdout
    assert job.stdout.count("nobody is parked") == 2 * nodes - 1, job.stdout


def test_a_gpu_that_adds_for_a_group_that_has_lost_a_member_holds_up_nothing(
    tmp_path: Path,
) -> None:
    settings = {"FOLDER": str(tmp_path), "JITTER": "0", **LONG, **ENVIRONMENT}
    job = run_job(["-n", "3", "--keep-going"], program("gpu_sums_lost_member"), **settings)
    assert job.stdout.count("the pair goes on") == 2, job.stdout


def test_a_stage_that_is_not_to_be_had_is_said() -> None:
    job = run_job(
        ["-n", "2"], program("gpu_stages"), WANTED="staged", HERRING_NODE_STAGE="ipc", **ENVIRONMENT
    )
    said = expect_success(job)
    assert "HERRING_NODE_STAGE is ipc, which is not available on this node; using staged" in said


def test_arenas_may_have_streams_of_their_own() -> None:
    expect_success(run_job(["-n", "2"], program("gpu_streams_of_arenas"), **ENVIRONMENT))
