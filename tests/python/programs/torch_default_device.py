"""Trains and calls collectives while torch makes tensors on another device by default.

Scripts do this with "cuda". Tensors on "meta" hold no values, so one that is made there by mistake
ends the job.
"""

import torch
import torch.distributed as dist

import herring.horovod.torch as hvd
import herring.torch
from herring.torch import ElasticSampler

dist.init_process_group("herring", init_method="herring://")
rank, size = herring.rank(), herring.size()


class Model(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.rows = torch.nn.Embedding(50, 8, sparse=sparse, device="cpu")
        self.norm = herring.torch.SyncBatchNorm(8, device="cpu")
        self.last = torch.nn.Linear(8, 1, device="cpu")
        self.unused = torch.nn.Linear(3, 3, device="cpu")

    def forward(self, chosen):
        return self.last(self.norm(self.rows(chosen)))


torch.set_default_device("meta")
assert torch.empty(1).device.type == "meta"

own = torch.full((4, 3), float(rank), device="cpu", requires_grad=True)
everyone = torch.arange(size, device="cpu").repeat_interleave(4)
found = herring.torch.functional.allgather(own)
assert torch.equal(found[:, 0].detach(), everyone.float())
herring.torch.functional.alltoall(own, [4] + [0] * (size - 1)).sum().backward()
hvd.allgather(own).sum().backward()
assert own.grad is not None and own.grad.device.type == "cpu"
rows = torch.arange(size, device="cpu") if rank == 0 else None
assert int(herring.torch.scatter(rows, 0)) == rank
output = torch.empty(1, device="cpu")
dist.scatter(output, list(rows.float().split(1)) if rank == 0 else None)
assert int(output) == rank
found = [None] * size
dist.all_gather_object(found, {"rank": rank})
assert [one["rank"] for one in found] == list(range(size))

for sparse, sync in ((False, "full"), (True, "full"), (False, herring.Quorum(size, staleness=0))):
    ddp = herring.torch.DistributedDataParallel(Model(sparse), sync=sync)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    whole = sync == "full"
    for step in range(3):
        optimizer.zero_grad()
        chosen = torch.arange(16, device="cpu") + step + rank
        ddp(chosen).square().sum().backward()
        for _ in [None] if whole else ddp.rounds():
            optimizer.step()
    for _ in [] if whole else ddp.flush():
        optimizer.step()
    digest = ddp.module.rows.weight.detach().double().sum().item()
    assert len({*herring.allgather_object(digest)}) == 1
    ddp.close()

model = Model(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model(torch.arange(16, device="cpu")).sum().backward()
with torch.device("cpu"):  # before torch 2.10, Adam makes its counters on the default device
    optimizer.step()
herring.torch.broadcast_parameters(model.state_dict())
herring.torch.broadcast_optimizer_state(optimizer)
optimizer = herring.torch.DistributedOptimizer(optimizer, model.named_parameters())
model(torch.arange(16, device="cpu") + rank).sum().backward()
optimizer.step()
sampler = ElasticSampler(range(100), batch_size=5)
assert len({*sampler}) == len(sampler)
dist.destroy_process_group()
