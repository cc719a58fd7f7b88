"""An elastic program of Horovod's with two optimizers, one with Adasum, and SyncBatchNorm.

Rank 0 dies once, and leaves the file that the argument names. Training ends when it has come back.
"""

import os
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

hvd.init()
wanted = int(os.environ["HOROVOD_SIZE"])
died = Path(sys.argv[1])
torch.manual_seed(os.getpid())
generator = torch.nn.Sequential(torch.nn.Linear(4, 8), hvd.SyncBatchNorm(8), torch.nn.Linear(8, 4))
judge = torch.nn.Linear(4, 1)
first = hvd.DistributedOptimizer(
    torch.optim.Adam(generator.parameters()),
    named_parameters=generator.named_parameters(),
    op=hvd.Sum,
)
second = hvd.DistributedOptimizer(torch.optim.SGD(judge.parameters(), lr=0.01), op=hvd.Adasum)
schedule = torch.optim.lr_scheduler.StepLR(first, 5)


@hvd.elastic.run
def train(state):
    while state.step < 12 or hvd.size() < wanted or not died.exists():
        if state.step == 7 and os.environ["HOROVOD_RANK"] == "0" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        noise = torch.randn(3, 4)
        first.zero_grad()
        judge(generator(noise)).mean().backward()
        first.step()
        schedule.step()
        second.zero_grad()
        judge(generator(noise).detach()).sum().backward()
        second.step()
        state.step += 1
        if state.step % 3 == 0:
            state.commit()


state = hvd.elastic.TorchState(
    generator, first, judge=judge, second=second, schedule=schedule, step=0
)
train(state)
values = [p.tolist() for model in (generator, judge) for p in model.parameters()]
values += [first.param_groups[0]["lr"], state.step]
everyone = hvd.allgather_object(values)
assert all(one == values for one in everyone), everyone
assert schedule.last_epoch == state.step, (schedule.last_epoch, state.step)
print("trained both", flush=True)
