"""Runs the cases of torch's adapters with all tensors on a GPU of the stand-in driver."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

import backend_cases
import horovod_cases
import torch_cases
from batches import herring_run, outcomes
from gpus import TORCH_ENVIRONMENT
from jobs import expect_success, run_job
from standin import STANDIN

# Version counters of tensors cannot be seen there, and compiling does not depend on the device.
WRAPPERS = [
    case for case in torch_cases.CASES if "compiled" not in case and case != "modified_in_place"
]
BACKEND = list(backend_cases.CASES)
HOROVOD = list(horovod_cases.CASES)


@functools.cache
def run_all(cases: str) -> dict[str, str]:
    if cases == "backend":
        command = [*herring_run("-n", "4", "--nodes", "2", seconds=160), "-m", "backend_cases"]
        command += ["--init", "herring://"]
        return outcomes(command, BACKEND, seconds=170, OMP_NUM_THREADS="1", **TORCH_ENVIRONMENT)
    if cases == "horovod":
        command = [*herring_run("-n", "4", "--nodes", "2", "--servers", "1"), "-m", "horovod_cases"]
        return outcomes(command, HOROVOD, OMP_NUM_THREADS="1", **TORCH_ENVIRONMENT)
    command = [*herring_run("-n", "3", "--nodes", "2"), "-m", "torch_cases"]
    return outcomes(command, WRAPPERS, **TORCH_ENVIRONMENT)


@STANDIN
@pytest.mark.parametrize(
    ("cases", "case"),
    [
        *(("wrappers", case) for case in WRAPPERS),
        *(("backend", case) for case in BACKEND),
        *(("horovod", case) for case in HOROVOD),
    ],
)
@pytest.mark.timeout(300)
def test_case(cases: str, case: str) -> None:
    if text := run_all(cases)[case]:
        pytest.fail(text, pytrace=False)


# Checks for each call how many bytes the core copies from the GPU, and how many it copies back.
HOROVOD_BYTES = """
import torch
import herring.horovod.torch as hvd
from gpus import Driver

hvd.init()
driver, rank, size = Driver(), hvd.rank(), hvd.size()
N = 50_000
WHOLE = 4 * N

def moved(call, *arguments, out, back, **options):
    before = driver.bytes()
    found = call(*arguments, **options)
    found = hvd.synchronize(found) if isinstance(found, int) else found
    after = driver.bytes()
    assert (after[0] - before[0], after[1] - before[1]) == (out, back), (call, before, after)
    assert after[2] == 0  # all memory is pinned
    return found

def mine(dtype=torch.float32):
    return torch.full((N,), rank + 1, dtype=dtype)

total = sum(r + 1 for r in range(size))
for call in (hvd.allreduce, hvd.allreduce_async, hvd.allreduce_, hvd.allreduce_async_):
    tensor = mine()
    found = moved(call, tensor, op=hvd.Sum, name="x", out=WHOLE, back=WHOLE)
    in_place = call.__name__.endswith("_")
    assert (found is tensor) == in_place and (found == total).all(), call
    assert (tensor == (total if in_place else rank + 1)).all(), call
for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allreduce_async_):
    pair = [mine(), mine(torch.float64)]
    found = moved(call, pair, op=hvd.Sum, out=3 * WHOLE, back=3 * WHOLE, prescale_factor=0.5)
    assert all((one == total / 2).all() for one in found), call
for call in (hvd.broadcast, hvd.broadcast_async, hvd.broadcast_, hvd.broadcast_async_):
    tensor = mine()
    found = moved(call, tensor, 1, out=WHOLE if rank == 1 else 0, back=WHOLE)
    assert (found is tensor) == call.__name__.endswith("_") and (found == 2).all(), call

# Strided in place; by a compressor; integers, which are summed there and averaged in host memory.
strided = mine().view(100, -1).t()
found = moved(hvd.allreduce_, strided, op=hvd.Sum, out=WHOLE, back=WHOLE)
assert found is strided and (strided == total).all()
half = moved(hvd.allreduce, mine(), op=hvd.Sum, compression=hvd.Compression.fp16,
             out=WHOLE // 2, back=WHOLE // 2)
assert half.dtype == torch.float32 and (half == total).all()
assert (moved(hvd.allreduce, mine(torch.int32), op=hvd.Sum, out=WHOLE, back=WHOLE) == total).all()
average = moved(hvd.allreduce, mine(torch.int32), op=hvd.Average, out=0, back=0)
assert (average == total // size).all()
pair = moved(hvd.grouped_allreduce, [mine(), mine(torch.int32)], out=0, back=0)
assert (pair[0] == total / size).all() and (pair[1] == total // size).all()
assert moved(hvd.allgather, mine(), out=0, back=0).shape == (size * N,)
hvd.shutdown()
"""


@STANDIN
@pytest.mark.timeout(100)
def test_horovods_all_reduces_and_broadcasts_leave_tensors_on_the_gpu() -> None:
    expect_success(run_job(["-n", "2", "--nodes", "2"], HOROVOD_BYTES, **TORCH_ENVIRONMENT))


MOVED = """
import torch
import herring.torch

herring.init()
for views in (False, True):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    ddp = herring.torch.DistributedDataParallel(model, gradient_as_bucket_view=views, name="m")
    for _ in range(2):
        ddp(torch.ones(1, 4)).sum().backward()
    # As if it had come from there; here there is one device only.
    layout = ddp._reducer._layout
    layout._devices[layout.names.index("1.weight")] = torch.device("cuda", 1)
    text = "parameter '1.weight' was on cuda:1 when 'm' was made and is on cpu now; move the mod"
    raises(herring.InvalidArgumentError, text, ddp(torch.ones(1, 4)).sum().backward)
    ddp.close()
herring.shutdown()
"""


@STANDIN
@pytest.mark.timeout(100)
def test_parameters_that_have_left_the_gpu_of_their_plan_are_named() -> None:
    expect_success(run_job(["-n", "2"], MOVED, **TORCH_ENVIRONMENT))


LEFT = """
import torch
import herring.torch

herring.init()
rank = herring.rank()
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
other = torch.nn.Linear(2, 1)
ddp = herring.torch.DistributedDataParallel(model, name="m")
behind = herring.torch.DistributedDataParallel(other, name="behind")

def step():
    model.zero_grad()
    other.zero_grad()
    behind(ddp(torch.ones(1, 4))).sum().backward()

for _ in range(2):
    step()
layout = ddp._reducer._layout
there = layout._devices[layout.names.index("1.weight")]
if rank == 1:  # as if it had come from there; here there is one device only
    layout._devices[layout.names.index("1.weight")] = torch.device("cuda", 1)
begun = time.monotonic()
why = "parameter '1.weight' was on cuda:1 when 'm' was made and is on cpu now; move the model"
raises(herring.InvalidArgumentError, why if rank == 1 else "m round 3: rank 1 refused it: " + why,
       step)
assert time.monotonic() - begun < 5
assert all(p.grad is None for p in model.parameters())
layout._devices[layout.names.index("1.weight")] = there
step()
assert all(p.grad is not None for p in (*model.parameters(), *other.parameters()))
ddp.close()
behind.close()
herring.shutdown()
"""


# All ranks end the rounds of several wrappers in the same order, whichever rank refuses.
@STANDIN
@pytest.mark.timeout(100)
def test_a_round_that_one_rank_refuses_is_an_error_on_all_ranks() -> None:
    expect_success(run_job(["-n", "3"], LEFT, HERRING_TIMEOUT="20", **TORCH_ENVIRONMENT))


# Checks for the calls of FSDP and DTensor how many bytes the core copies from and to the GPU.
BACKEND_BYTES = """
import torch
import torch.distributed as dist
from gpus import Driver

dist.init_process_group("herring", init_method="herring://")
driver, rank, size = Driver(), dist.get_rank(), dist.get_world_size()
N = 50_000

def moved(call, *arguments, out, back, **options):
    before, waits = driver.bytes(), driver.calls(b"cuStreamSynchronize")
    call(*arguments, **options)
    after = driver.bytes()
    found = after[0] - before[0], after[1] - before[1]
    assert found == (4 * out, 4 * back), (call, before, after)
    assert after[2] == 0 and driver.calls(b"cuStreamSynchronize") == waits

mine = torch.full((N,), rank + 1.0)
gathered = torch.zeros(size * N)
moved(dist.all_gather_into_tensor, gathered, mine, out=N, back=size * N)
assert (gathered.view(size, N) == torch.arange(1.0, size + 1)[:, None]).all()
blocks = [torch.zeros(N) for _ in range(size)]
moved(dist.all_gather, blocks, mine, out=N, back=size * N)
assert all((one == r + 1).all() for r, one in enumerate(blocks))
part = torch.zeros(N)
moved(dist.reduce_scatter_tensor, part, gathered * (rank + 1), out=size * N, back=N)
assert (part == (rank + 1) * sum(range(size + 1))).all()
strided = mine.view(100, -1).t()
moved(dist.broadcast, strided, 1, out=N if rank == 1 else 0, back=N)
assert (strided == 2).all() and not strided.is_contiguous()
strided.fill_(1)
moved(dist.all_reduce, strided, out=N, back=N)
assert (strided == size).all()
short = torch.zeros(N + (rank == 1))
try:
    dist.all_gather([torch.zeros(N) for _ in range(size)], short)
except herring.MismatchError as error:
    assert "rank 1 sent" in str(error), error
else:
    raise AssertionError("no error")
moved(dist.gather, mine, blocks if rank == 0 else None, out=0, back=0)
dist.destroy_process_group()
"""


@STANDIN
@pytest.mark.timeout(100)
def test_gathers_and_scatters_of_the_backend_leave_tensors_on_the_gpu() -> None:
    expect_success(run_job(["-n", "3"], BACKEND_BYTES, **TORCH_ENVIRONMENT))
    expect_success(run_job(["-n", "2", "--nodes", "2"], BACKEND_BYTES, **TORCH_ENVIRONMENT))


SEVERAL = """
import torch
import torch.distributed as dist
from gpus import Driver
from herring.torch import devices

dist.init_process_group("herring", init_method="herring://")
options = dist.AllreduceCoalescedOptions()
for alike, moved in ((True, 28), (False, 0)):
    devices.gpu_of = lambda tensor: 0 if alike or len(tensor) == 3 else 1
    pair, before = [torch.ones(3), torch.ones(4)], Driver().bytes()[0]
    dist.group.WORLD.allreduce_coalesced(pair, options).wait()
    assert all((one == dist.get_world_size()).all() for one in pair)
    assert Driver().bytes()[0] - before == moved, (alike, Driver().bytes(), before)
dist.destroy_process_group()
"""


@STANDIN
@pytest.mark.timeout(100)
def test_tensors_of_several_gpus_in_one_list_go_by_host_memory() -> None:
    expect_success(run_job(["-n", "2"], SEVERAL, **TORCH_ENVIRONMENT))
