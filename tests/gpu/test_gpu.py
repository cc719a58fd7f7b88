"""Tests on a real GPU (`make test-gpu`); without a GPU, all of them are skipped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))  # after this folder

from butterfly_scripts import BITS, MANY  # noqa: E402
from gpu_scripts import COLLECTIVES, GATHERS, ROUNDS, STAGES  # noqa: E402
from gpus import ENVIRONMENT  # noqa: E402
from jobs import expect_success, run_job  # noqa: E402

pytestmark = pytest.mark.timeout(200)

LAYOUTS = {
    "alone": ["-n", "1"],
    "one-node": ["-n", "2"],
    "two-nodes": ["-n", "4", "--nodes", "2"],
    "dedicated-server": ["-n", "3", "--nodes", "3", "--servers", "1"],
}

# Compares training steps with the same steps on one rank without Herring. Meanwhile, kernels run in
# another stream and memory is freed.
TRAINING = """
import torch
import herring.torch
herring.init()
rank, size = herring.rank(), herring.size()
torch.cuda.set_device(rank % torch.cuda.device_count())

def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(300, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 2000), torch.nn.Tanh(),
        torch.nn.Linear(2000, 10),
    ).cuda().double()

def batch(step, of):
    torch.manual_seed(100 * step + of)
    return torch.randn(16, 300, dtype=torch.float64).cuda()

for wrapper in ("ddp", "views", "optimizer"):
    mine, alone = model(), model()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    if wrapper == "optimizer":
        forward = mine
        optimizer = herring.torch.DistributedOptimizer(optimizer, mine.named_parameters())
    else:
        forward = herring.torch.DistributedDataParallel(
            mine, gradient_as_bucket_view=wrapper == "views")
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    side = torch.cuda.Stream()
    for step in range(8):
        optimizer.zero_grad()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
        forward(batch(step, rank)).square().mean().backward()
        if step % 3 == 1:
            torch.cuda.empty_cache()
        optimizer.step()
        reference.zero_grad()
        (sum(alone(batch(step, r)).square().mean() for r in range(size)) / size).backward()
        reference.step()
        for p, q in zip(mine.parameters(), alone.parameters()):
            assert torch.allclose(p, q, rtol=1e-9, atol=1e-12), (wrapper, step)
    (forward if wrapper != "optimizer" else optimizer).close()

tensor = torch.full((1000, 1000), float(rank), device="cuda")
torch.cuda._sleep(20_000_000)
tensor += 1
herring.torch.allreduce(tensor, "sum")
assert (tensor == sum(r + 1 for r in range(size))).all()
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        herring.torch.allreduce(tensor, "sum", name="captured")
except herring.InvalidArgumentError as error:
    assert "captured for a CUDA graph" in str(error)
else:
    raise AssertionError("a capture was not refused")
herring.shutdown()
"""

# The result is ready for the stream that is current during the call of `synchronize`.
HOROVOD = """
import torch
import herring.horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.cuda.set_device(rank % torch.cuda.device_count())
total = sum(r + 1 for r in range(size))
for start in (hvd.allreduce_async, hvd.allreduce_async_):
    tensor = torch.full((1_000_000,), float(rank), device="cuda")
    torch.cuda._sleep(20_000_000)
    tensor += 1
    handle = start(tensor, op=hvd.Sum)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = hvd.synchronize(handle)
        assert (found * 2 == 2 * total).all() and found.is_cuda
    assert (found is tensor) == (start is hvd.allreduce_async_)
    torch.cuda.synchronize()
pair = [torch.full((n,), rank + 1, device="cuda") for n in (7, 70_000)]
torch.cuda._sleep(20_000_000)
for one in pair:
    one += 1
assert all((one == total + size).all() for one in hvd.grouped_allreduce(pair, op=hvd.Sum))
assert (hvd.broadcast(pair[1], size - 1) == size + 1).all()
assert (hvd.allreduce(pair[1], op=hvd.Average) == int((total + size) / size)).all()
hvd.shutdown()
"""

# Tests calls whose tensors torch copies to host memory and back, in a stream with queued work.
COPIED = """
import torch
import torch.distributed as dist
import herring.torch
dist.init_process_group("herring", init_method="herring://")
rank, size = herring.rank(), herring.size()
torch.cuda.set_device(rank % torch.cuda.device_count())
N = 100_000

def late(value, n=N):
    tensor = torch.full((n,), -1.0, device="cuda")
    torch.cuda._sleep(20_000_000)
    return tensor.fill_(value)

def blocks(*values):
    return torch.cat([torch.full((N,), float(v), device="cuda") for v in values])

with torch.cuda.stream(torch.cuda.Stream()):
    everyone = blocks(*range(size))
    assert torch.equal(herring.torch.allgather(late(rank)), everyone)
    found = herring.torch.gather(late(rank))
    assert found is None if rank else torch.equal(found, everyone)
    assert (herring.torch.reduce_scatter(late(rank, size * N), "sum") == sum(range(size))).all()
    assert torch.equal(herring.torch.alltoall(late(rank, size * N)), everyone)
    assert (herring.torch.scatter(late(5, size * N), 0) == 5).all()
    grown = late(rank).requires_grad_()
    herring.torch.functional.allgather(grown).sum().backward()
    assert (grown.grad == size).all()

    # Outputs that are still to be written to when the call is made.
    output = late(-2)
    dist.scatter(output, list(everyone.chunk(size)) if rank == 0 else None)
    assert (output == rank).all()
    output = late(-2, size * N)
    dist.all_gather_into_tensor(output, late(rank))
    assert torch.equal(output, everyone)
    output = late(-2, size * N)
    dist.all_to_all_single(output, late(rank, size * N))
    assert torch.equal(output, everyone)
    if size > 1:
        output = late(-2)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, late(rank), (rank + 1) % size),
            dist.P2POp(dist.irecv, output, (rank - 1) % size)])
        [work.wait() for work in works]
        assert (output == (rank - 1) % size).all()

    norm = herring.torch.SyncBatchNorm(3).cuda().double()
    alone = torch.nn.BatchNorm1d(3).cuda().double()
    torch.manual_seed(1)
    whole = torch.randn(4 * size, 3, dtype=torch.float64, device="cuda")
    torch.cuda._sleep(20_000_000)
    mine = (2 * whole)[4 * rank : 4 * rank + 4]
    assert torch.allclose(norm(mine), alone(2 * whole)[4 * rank : 4 * rank + 4])

    model = torch.nn.Linear(1000, 1, bias=False).cuda()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    sync = herring.Quorum(size, staleness=0)
    ddp = herring.torch.DistributedDataParallel(model, sync=sync if size > 1 else "full")
    for step in range(3):
        optimizer.zero_grad()
        ddp(late(float(rank + 1), 1000)).sum().backward()
        for _ in ddp.rounds() if size > 1 else [None]:
            optimizer.step()
    for _ in ddp.flush() if size > 1 else []:
        optimizer.step()
    average = sum(range(1, size + 1)) / size
    assert torch.allclose(model.weight, torch.full_like(model.weight, -3 * average))
    ddp.close()

moving = torch.nn.Linear(4, 2).cuda()
ddp = herring.torch.DistributedDataParallel(moving, name="moving")
moving.cpu()
text = "was on cuda:%d when 'moving' was made and is on cpu now" % torch.cuda.current_device()
raises(herring.InvalidArgumentError, text, moving(torch.ones(1, 4)).sum().backward)
ddp.close()
dist.destroy_process_group()
"""


SCRIPTS = {
    "collectives": COLLECTIVES,
    "gathers": GATHERS,
    "rounds": ROUNDS,
    "training": TRAINING,
    "horovod": HOROVOD,
    "copied": COPIED,
    "butterfly-bits": BITS,
    "many-butterflies": MANY,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_right(name: str, layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], SCRIPTS[name], timeout=150, **ENVIRONMENT))


@pytest.mark.parametrize("layout", ["one-node", "two-nodes", "four"])
@pytest.mark.parametrize("stage", ["ipc", "staged", "host"])
def test_gpus_add_with_the_bits_of_processors(stage: str, layout: str) -> None:
    options = {**LAYOUTS, "four": ["-n", "4"]}[layout]
    nodes = "2" if layout == "two-nodes" else "1"
    environment = {"WANTED": stage, "HERRING_NODE_STAGE": stage, "GPUS": "1", "NODES": nodes}
    expect_success(run_job(options, STAGES, timeout=150, **environment, **ENVIRONMENT))


def test_check_measures_each_stage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "herring.launch.cli", "check", "--no-run", "--tune", "--json"],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=190,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["tune"]
    assert figures["ranks"] == min(max(torch.cuda.device_count(), 2), 8)
    host, staged, ipc = figures["stages"]
    assert [one["stage"] for one in (host, staged, ipc)] == ["host", "staged", "ipc"]
    assert host["available"], figures
    for one in (host, staged, ipc):
        assert (one["median_seconds"] or 0) > 0 if one["available"] else one["why"], one
    assert figures["auto"] == ipc["used"]


def run_bench(workers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herring.launch.cli", "run", "-n", str(workers)]
    command += ["--timeout", "100", "--", sys.executable, "-m", "herring.bench", *arguments]
    return subprocess.run(
        [*command, "--check", "--sizes", "4K,5M", "--warmup", "1", "--iterations", "3"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", ["allreduce", "planned", "variables"])
def test_the_benchmark_is_right(operation: str, dtype: str) -> None:
    said = expect_success(run_bench(2, operation, "--device", "cuda", "--dtype", dtype))
    assert "# wrong elements: 0 OK" in said
    assert "# device: cuda:0 (" in said


def test_the_benchmark_measures_gloo_on_a_gpu() -> None:
    if importlib.util.find_spec("herring_lab.competitors") is None:
        pytest.skip("herring-dl-lab is not installed")
    arguments = ["--peer", "gloo", "--device", "cuda", "--op", "sum"]
    said = expect_success(run_bench(2, "allreduce", *arguments))
    assert "# wrong elements: 0 OK" in said


def test_the_benchmark_refuses_nccl_with_more_ranks_than_gpus() -> None:
    if importlib.util.find_spec("herring_lab.competitors") is None:
        pytest.skip("herring-dl-lab is not installed")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this build of torch has no NCCL")
    gpus = torch.cuda.device_count()
    said = expect_success(run_bench(gpus, "allreduce", "--peer", "nccl", "--op", "sum"))
    assert "# wrong elements: 0 OK" in said
    job = run_bench(gpus + 1, "allreduce", "--peer", "nccl", "--op", "sum")
    assert job.returncode == 3, job.stdout
    assert f"ConfigurationError: --peer nccl: ranks 0, {gpus} would share the GPU" in job.stdout


@pytest.mark.parametrize("average", ["herring", "ddp", "none"])
@pytest.mark.parametrize("model", ["resnet50", "bert"])
def test_the_example_trains(model: str, average: str) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "synthetic.py"
    command = [sys.executable, "-m", "herring.launch.cli", "run", "-n", "2", "--timeout", "100"]
    command += ["--", sys.executable, str(example), "--tiny", "--device", "cuda", "--steps", "5"]
    job = subprocess.run(
        [*command, "--model", model, "--average", average, "--dtype", "bfloat16"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    said = expect_success(job)
    assert ("checked: all workers hold the same parameters" in said) == (average != "none")
