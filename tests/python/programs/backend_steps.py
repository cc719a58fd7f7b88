"""Steps of torch's backend on GPUs, in which the driver may fail, as in `gpu_steps`."""

import os
import threading

import torch
import torch.distributed as dist

import herring
from gpus import Driver
from herring.arrays import runtime
from support import tell, told, until, waits

LAST = 2  # a step
calls, moment = os.environ["CALLS"], os.environ.get("MOMENT")
step = 0


def lose_in_wait() -> None:
    # With DDP, torch's C++ waits, of which Herring's program knows nothing.
    until(lambda: runtime.job().activity()["in_flight"] if calls == "ddp" else waits())
    driver.lose(0, 0)
    tell("lost")


def take_step() -> None:
    if moment == "0" and step == LAST and rank == size - 1:
        # Torch's C++ asks no driver.
        told(*(["lost"] if calls == "ddp" else ["knows 0", "knows 1"]))
    mine, whole = torch.full((50_000,), rank + 1.0), torch.zeros(size * 50_000)
    total = size * (size + 1) / 2
    if calls == "ddp":
        model.zero_grad()
        model(torch.full((2, 300), rank + 1.0)).sum().backward()
        assert torch.allclose(model.module.weight.grad, torch.tensor(2 * total / size))
    elif calls == "all_gather":
        dist.all_gather_into_tensor(whole, mine)
        assert (whole.view(size, -1) == torch.arange(1.0, size + 1)[:, None]).all()
    elif calls == "reduce_scatter":
        dist.reduce_scatter_tensor(mine, whole + rank + 1)
        assert (mine == total).all()
    elif calls == "broadcast":
        dist.broadcast(mine, 1)
        assert (mine == 2).all()
    else:
        dist.all_reduce(mine, async_op=True).wait()
        assert (mine == total).all()


rank = -1
try:
    dist.init_process_group("herring", init_method="herring://")
    driver, rank, size = Driver(), dist.get_rank(), dist.get_world_size()
    if calls == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    for step in range(LAST + 1 if moment is None else LAST + 3):
        if step == LAST and moment is not None:
            dist.barrier()
            if rank == 0 and moment == "0":
                threading.Thread(target=lose_in_wait).start()
            elif rank == 0:
                driver.lose(int(moment), 0)
        take_step()
    print(f"rank {rank}: no error")
except (herring.HerringError, RuntimeError) as error:  # C++ code of torch raises the latter
    print(f"rank {rank}: {type(error).__name__} in step {step}: {error}", flush=True)
if moment == "0":
    tell(f"knows {rank}")
if dist.is_initialized():
    dist.destroy_process_group()
