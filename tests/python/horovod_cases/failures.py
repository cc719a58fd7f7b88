"""Cases for calls on which ranks disagree, for ranks that join, and for timelines."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

import torch

import herring
import herring.horovod.torch as hvd

from .support import case, close, loss_of, mlp, raises, same


@case
def disagreements():
    rank, size = hvd.rank(), hvd.size()
    first = rank == 0
    calls = [
        lambda: hvd.allreduce(torch.ones(3 + first), name="m"),
        lambda: hvd.allreduce(torch.ones(2, 3) if rank else torch.ones(3, 2), name="m"),
        lambda: hvd.allreduce(
            torch.ones(2).to(torch.float64 if first else torch.float32), name="m"
        ),
        lambda: hvd.allreduce(torch.ones(2).to(torch.int32 if first else torch.float64), name="m"),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum if first else hvd.Average, name="m"),
        lambda: hvd.allgather(torch.ones(2, 2 + first), name="m"),
        lambda: hvd.broadcast(torch.ones(2), int(first), name="m"),
        lambda: hvd.alltoall(torch.ones(size, 1 + first), name="m"),
        lambda: hvd.reducescatter(torch.ones(size, 1 + first), name="m"),
        lambda: hvd.grouped_allreduce([torch.ones(2)] * (1 + first), name="m"),
        lambda: hvd.grouped_allgather([torch.ones(2)] * (1 + first), name="m"),
        lambda: hvd.grouped_reducescatter([torch.ones(size)] * (1 + first), name="m"),
        lambda: hvd.broadcast_parameters({"w": torch.ones(2 + first)}, 0),
        lambda: hvd.grouped_allreduce(
            [torch.ones(1), torch.ones(2).to(torch.int32 if first else torch.int64)], name="m"
        ),
        lambda: hvd.grouped_reducescatter(
            [torch.ones(size).to(torch.int32 if first else torch.int64)], name="m"
        ),
    ]
    for _ in range(2):
        for call in calls:
            error = raises(hvd.HorovodInternalError, "", call)
            assert isinstance(error, herring.MismatchError), error
            texts = {str(text).split("; rank ")[0] for text in hvd.allgather_object(str(error))}
            assert len(texts) == 1, texts
    refusals = [
        lambda: hvd.allreduce(
            torch.ones(2).to(torch.complex64 if first else torch.float32), name="m"
        ),
        lambda: hvd.grouped_allreduce(
            [torch.ones(2).to_sparse() if first else torch.ones(2)], name="m"
        ),
        lambda: hvd.alltoall(
            torch.ones(size), splits=[2] * size if first else [1] * size, name="m"
        ),
        lambda: hvd.allreduce(torch.ones(2), op=9 if first else hvd.Sum, name="m"),
    ]
    for factor in ("prescale_factor", "postscale_factor"):
        for call, given in (
            (hvd.allreduce, torch.ones(2)),
            (hvd.grouped_allreduce, [torch.ones(2)]),
            (hvd.reducescatter, torch.ones(size)),
            (hvd.grouped_reducescatter, [torch.ones(size)]),
        ):
            text = f"{factor} is nan"
            raises(ValueError, text, call, given, name="m", **{factor: float("nan")})
        raises(
            ValueError, text, hvd.allreduce, torch.ones(2), op=hvd.Adasum, **{factor: float("nan")}
        )
    for call in refusals:
        raises(RuntimeError, "", call)
    assert hvd.allreduce(torch.ones(1), name="m").item() == 1


@case
def sparse_disagreements():
    op = hvd.Average if hvd.rank() else hvd.Sum
    rows = torch.eye(2).to_sparse()
    handle = hvd.sparse_allreduce_async(rows, name="m", op=op)
    error = raises(herring.MismatchError, "op sum", hvd.synchronize, handle)
    assert "op average" in str(error), error
    assert isinstance(error, hvd.HorovodInternalError)
    found = hvd.sparse_allreduce_async(rows, name="m", op=hvd.Sum)().to_dense()
    assert torch.equal(found, hvd.size() * torch.eye(2))


@case
def threads():
    found = {}

    def work(name: str) -> None:
        for _ in range(5):
            found[name] = hvd.allreduce(torch.full((3,), float(hvd.rank())), name=name, op=hvd.Max)

    names = ["a", "b", "c"]
    workers = [
        threading.Thread(target=work, args=(name,))
        for name in (names if hvd.rank() % 2 else reversed(names))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all((found[name] == hvd.size() - 1).all() for name in names)


@case
def joins():
    rank, size = hvd.rank(), hvd.size()
    model, alone = mlp(), mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    for step in range(1 + rank):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        left = sum(step < 1 + r for r in range(size))
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == left
        # Averages divide by all ranks, large ones and those of integers and of lists as well.
        for ones in (torch.ones(1), torch.ones(300_000), torch.ones(2, dtype=torch.float16)):
            average = hvd.allreduce(ones).float()
            assert torch.allclose(average, torch.tensor(left / size), atol=1e-3), ones
        assert hvd.allreduce(torch.tensor([6 * size])).item() == 6 * left
        first, second = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)], postscale_factor=2.0)
        assert torch.allclose(first, torch.tensor(2 * left / size)), first
        assert torch.allclose(second, torch.tensor(2 * left / size)), second
    last = hvd.join()
    assert last == size - 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(size):
        reference.zero_grad()
        for r in range(size):
            if step < 1 + r:
                (loss_of(alone, step, r) / size).backward()
        reference.step()
    close(model, alone)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
    same(model)
    assert 0 <= hvd.join() < size


@case
def timelines():
    path = Path(tempfile.gettempdir(), f"herring-timeline-{os.getpid()}.json")
    hvd.start_timeline(path)
    hvd.allreduce(torch.ones(2), name="seen")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        events = [one for one in json.loads(path.read_text()) if one["ph"] == "X"]
        seen = {one["pid"] for one in events if "'horovod.allreduce.seen'" in one["name"]}
        assert seen == set(range(hvd.size())), seen  # on all ranks
        path.unlink()
        raises(ValueError, "folder does not exist", hvd.start_timeline, "/nowhere/at/all.json")
