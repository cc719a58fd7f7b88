"""Steps of torch's backend on GPUs, in which the driver may fail, as in `gpu_steps`."""

import os
import threading
import time

import torch
import torch.distributed as dist

import herring
from gpus import Driver

LAST, LATE = 2, 3.0  # a step and seconds
calls, moment = os.environ["CALLS"], os.environ.get("MOMENT")
step, begun = 0, time.monotonic()


def take_step() -> None:
    if moment == "0" and step == LAST and rank == size - 1:
        time.sleep(LATE)
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
            begun = time.monotonic()
            if rank == 0 and moment == "0":
                threading.Timer(LATE / 10, lambda: driver.lose(0, 0)).start()
            elif rank == 0:
                driver.lose(int(moment), 0)
        take_step()
    print(f"rank {rank}: no error")
except (herring.HerringError, RuntimeError) as error:  # C++ code of torch raises the latter
    print(f"rank {rank}: {type(error).__name__} in step {step}: {error}")
print(f"rank {rank}: knows after {time.monotonic() - begun:.2f} s", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
print(f"rank {rank}: ends after {time.monotonic() - begun:.2f} s")
