"""Calls whose tensors torch copies to host memory and back, in a stream with queued work."""

import torch
import torch.distributed as dist

import herring.torch
from support import raises

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

    # Kernels that write to these outputs are still queued when the call is made.
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
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, late(rank), (rank + 1) % size),
                dist.P2POp(dist.irecv, output, (rank - 1) % size),
            ]
        )
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
    for _ in range(3):
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
device = torch.cuda.current_device()
text = f"was on cuda:{device} when 'moving' was made and is on cpu now"
raises(herring.InvalidArgumentError, text, moving(torch.ones(1, 4)).sum().backward)
ddp.close()
dist.destroy_process_group()
