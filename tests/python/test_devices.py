"""Arrays on GPUs of the stand-in for CUDA's driver: sums are right in any order of events."""

from __future__ import annotations

import re

import pytest

from gpus import BY_KERNELS, ENVIRONMENT, GPUS, UNPINNED
from jobs import LAYOUTS, expect_success, program, run_job
from standin import STANDIN, checked

pytestmark = STANDIN


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", ["auto", "host"])
@pytest.mark.parametrize("name", ["gpu_collectives", "gpu_gathers", "gpu_rounds"])
def test_right_under_jitter(name: str, layout: str, stage: str) -> None:
    if name != "gpu_rounds" and stage == "host":
        pytest.skip("only planned rounds have a choice")
    expect_success(run_job(LAYOUTS[layout], program(name), HERRING_NODE_STAGE=stage, **ENVIRONMENT))


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_rounds_in_8_bits_are_right_under_jitter(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("gpu_rounds"), WIRE="fp8", **ENVIRONMENT))


@pytest.mark.parametrize(
    "name", ["gpu_collectives", "gpu_rounds", "gpu_orders", "butterfly_values", "xla_collectives"]
)
def test_kernels_wait_where_streams_have_no_memory_operations(name: str) -> None:
    expect_success(run_job(["-n", "3", "--nodes", "2"], program(name), **BY_KERNELS, **ENVIRONMENT))


def test_a_plan_on_a_gpu_may_have_no_gradients() -> None:
    script = """
plan = herring.PlannedReduction([], name="p", device=0, note_bytes=size)
for _ in range(4):
    plan.begin()
    plan.note(bytes(r == rank for r in range(size)))
    plan.wait()
    assert plan.notes == bytes([1] * size)
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


@pytest.mark.parametrize("stage", ["host", "staged"])
def test_a_round_with_nothing_to_add_comes_after_the_way_back_of_the_last(stage: str) -> None:
    expect_success(
        run_job(["-n", "2"], program("gpu_nothing_to_add"), HERRING_NODE_STAGE=stage, **ENVIRONMENT)
    )


@pytest.mark.parametrize("stage", ["host", "staged"])
def test_gradients_that_are_ready_at_once_go_out_in_parts(stage: str) -> None:
    """What is out is added and pushed while the rest is on its way, also of one large gradient."""
    script = """
sizes = [7, 6_000_000, 0, 200_000, 1_500_000]
plan = herring.PlannedReduction([(n, "float32") for n in sizes], name="p", op="sum", device=0,
                                buffer_bytes=1 << 20)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
for step in range(5):
    plan.begin()
    arena.store(np.arange(len(arena.get())) % 1000 + rank + step, 2000)
    before = driver.calls(b"cuStreamWriteValue32")
    plan.ready_all(range(len(sizes)))
    told = driver.calls(b"cuStreamWriteValue32") - before
    plan.wait()
    found = arena.get()
    assert (found == size * (np.arange(len(found)) % 1000 + step) + sum(range(size))).all(), step
    parts = -(-4 * sum(sizes) // (4 << 20))
    assert told >= parts - (plan.node_stage == "staged"), (told, parts)
assert plan.node_stage == WANTED
plan.close()
herring.shutdown()
"""
    environment = {"HERRING_NODE_STAGE": stage, **ENVIRONMENT}
    script = script.replace("WANTED", repr(stage))
    expect_success(run_job(["-n", "4", "--nodes", "2"], GPUS + script, **environment))


def test_bad_input_is_refused_with_its_name() -> None:
    expect_success(run_job(["-n", "2"], program("gpu_bad_input"), **ENVIRONMENT))


def test_a_wait_inside_a_capture_is_refused_before_it_waits() -> None:
    expect_success(
        run_job(["-n", "2"], program("gpu_captured"), HERRING_TIMEOUT="600", **ENVIRONMENT)
    )


def test_addresses_may_come_back_as_memory_of_another_kind() -> None:
    expect_success(run_job(["-n", "2"], program("gpu_addresses_again"), **ENVIRONMENT))


def test_pinned_memory_of_the_host_is_memory_of_the_host() -> None:
    """PyTorch exports a pinned tensor as one of kind 3, the memory of a host for CUDA."""
    script = """
from gpus import Pinned

mine = Pinned(np.full(1000, rank, np.float32))
assert (herring.allgather(mine) == np.repeat(np.arange(size), 1000)).all()
herring.allreduce(mine, "sum")
assert (mine.values == sum(range(size))).all()
herring.grouped_allreduce([mine, np.ones(3)], "sum")
assert (mine.values == size * sum(range(size))).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


def test_an_array_that_refuses_its_buffer_is_taken_by_dlpack() -> None:
    """CuPy's arrays have the buffer protocol, and refuse it."""
    script = """
class Refusing(np.ndarray):
    def __dlpack_device__(self): return self.inner.__dlpack_device__()
    def __dlpack__(self, **options): return self.inner.__dlpack__(**options)
    __cuda_array_interface__ = property(lambda self: self.inner.__cuda_array_interface__)

array = np.zeros(1, "datetime64[s]").view(Refusing)
array.inner = GpuArray(np.full(1000, rank, np.float32))
herring.allreduce(array, "sum")
assert (array.inner.get() == sum(range(size))).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


def test_without_a_driver_the_error_says_so() -> None:
    script = """
class Array:
    def __dlpack_device__(self): return 2, 0
    def __dlpack__(self, stream=None): raise AssertionError("is not asked for")

herring.init()
raises(herring.ConfigurationError, "no CUDA driver: libcuda.so.1", herring.allreduce, Array())
"""
    expect_success(run_job(["-n", "1"], script, LD_LIBRARY_PATH="/nowhere"))


def test_a_forked_child_is_told_that_it_cannot() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array)
child = os.fork()
if child == 0:
    from herring import _core
    try:
        _core.describe_devices()
    except herring.ShutdownError as error:
        os._exit(0 if "forked" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
herring.allreduce(array)
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


def test_check_tells_of_each_gpu() -> None:
    def lines(*options: str, **environment: str) -> dict[str, str]:
        found = checked(*options, **environment)
        return {name: f"{one['verdict']} {one['value']}" for name, one in found.items()}

    found = lines("--no-run")
    assert found["GPU driver"] == "ok CUDA 13.0, 2 GPUs"
    assert found["GPU 1"] == (
        "ok stand-in 1, 4.29 GB, compute capability 9.0, at 0000:02:00.0, NUMA node 0, memory "
        "operations on streams"
    )
    assert found["peer access"] == "ok none"
    assert "GPU 0, copies" not in found
    found = lines(**BY_KERNELS)
    assert re.fullmatch(
        r"ok stand-in 0, .*, kernels that wait \(no memory operations on streams\)", found["GPU 0"]
    ), found["GPU 0"]
    assert re.fullmatch(
        r"ok out [\d.]+ GB/s, in [\d.]+ GB/s, both at once [\d.]+ GB/s, in pinned memory",
        found["GPU 1, copies"],
    )
    found = lines(STANDIN_PEERS="1", STANDIN_FAIL="cuMemHostRegister:1:1")
    assert re.fullmatch(
        r"note out [\d.]+ GB/s, in [\d.]+ GB/s, both at once [\d.]+ GB/s, in memory that is not "
        r"pinned \(GPU 0: cuMemHostRegister failed: invalid argument .*\)",
        found["GPU 0, copies"],
    ), found["GPU 0, copies"]
    assert found["GPU 1, copies"].endswith(", in pinned memory")
    assert found["peer access"] == "ok between all GPUs"
    found = lines("--no-run", LD_LIBRARY_PATH="/nowhere")
    assert found["GPUs"].startswith("ok none (no CUDA driver: libcuda.so.1")


# A copy of memory that is not pinned may block the thread that queues it.
@pytest.mark.parametrize("name", ["gpu_rounds", "gpu_orders", "xla_collectives"])
def test_ranks_wait_for_nobody_where_no_memory_can_be_pinned(name: str) -> None:
    said = expect_success(run_job(["-n", "3"], program(name), **UNPINNED, **ENVIRONMENT))
    assert "memory for copies to and from GPUs cannot be pinned" in said, said


def test_memory_that_cannot_be_pinned_is_said_and_works() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array, "sum")  # flags are pinned from now on
driver.fail(b"cuMemHostRegister", 1, 1, False)
large = GpuArray(np.ones(3_000_000, np.float32))
for step in range(2):
    herring.allreduce(large, "sum")
    assert (large.get() == size ** (step + 1)).all()
assert driver.bytes()[2] > 0
herring.shutdown()
"""
    said = expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))
    assert said.count("memory for copies to and from GPUs cannot be pinned") == 2, said
    assert "ulimit -l unlimited" in said


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_orders_threads_groups_and_jobs_in_turn(layout: str) -> None:
    expect_success(
        run_job(LAYOUTS[layout], program("gpu_orders"), HERRING_PROXIES="3", **ENVIRONMENT)
    )


def test_a_wait_on_the_host_for_a_copy_sleeps_no_longer_than_the_copy_takes() -> None:
    expect_success(run_job(["-n", "2"], program("gpu_copy_waits"), JITTER="0", **ENVIRONMENT))
