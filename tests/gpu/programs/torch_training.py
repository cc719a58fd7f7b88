"""Compares training steps with the same steps on one rank without Herring.

Meanwhile, kernels run in another stream and memory is freed.
"""

import torch

import herring.torch

herring.init()
rank, size = herring.rank(), herring.size()
torch.cuda.set_device(rank % torch.cuda.device_count())


def model():
    torch.manual_seed(7)
    return (
        torch.nn.Sequential(
            torch.nn.Linear(300, 2000),
            torch.nn.Tanh(),
            torch.nn.Linear(2000, 2000),
            torch.nn.Tanh(),
            torch.nn.Linear(2000, 10),
        )
        .cuda()
        .double()
    )


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
            mine, gradient_as_bucket_view=wrapper == "views"
        )
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
herring.barrier()  # A rank that left first would be the reason on the others.
herring.shutdown()
