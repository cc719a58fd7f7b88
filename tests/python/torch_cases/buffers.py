"""Cases for buffers that change, for what each rank keeps for itself, and for unusable tensors."""

from __future__ import annotations

import resource
from pathlib import Path

import torch
from torch import nn

import herring.torch as herring

from .support import case, mine, raises, same_everywhere


class Changes(nn.Module):
    """Changes its buffers before step 2 and 4, by one of several ways."""

    def __init__(self, how: str, on_this_rank: bool = True):
        super().__init__()
        self.linear = nn.Linear(16, 4)
        self.part = nn.Module()
        self.part.register_buffer("cache", torch.zeros(4))
        self.how, self.on_this_rank, self.steps = how, on_this_rank, 0

    def forward(self, x):
        self.steps += 1
        if self.steps in (2, 4) and self.on_this_rank:
            new = torch.full((4 * self.steps,), 10.0 * self.steps + herring.rank())
            if self.how == "assigned":
                self.part.cache = new
            elif self.how == "registered":
                self.part.register_buffer("cache", new)
            elif self.how == "resized":
                self.part.cache.resize_(len(new)).copy_(new)
            elif self.how == "smaller":
                self.part.cache = new[: 5 - self.steps]
            elif self.how == "other dtype":
                self.part.cache = self.part.cache.to(torch.float64) + herring.rank()
            elif self.how == "same bytes":
                self.part.cache = torch.full((2, 2), 1.0)
            elif self.how == "added":
                self.register_buffer(f"later{self.steps}", new)
            elif self.how == "removed":
                self.part.cache = None
            elif self.how == "expanded":
                self.part.cache = torch.zeros(1).expand(4)
        return self.linear(x)


HOWS = (
    "assigned",
    "registered",
    "resized",
    "smaller",
    "other dtype",
    "same bytes",
    "added",
    "removed",
)


@case
def buffers_that_change():
    for how in HOWS:
        net = Changes(how)
        ddp = herring.DistributedDataParallel(net)
        for step in range(6):
            ddp(mine(step)[0]).sum().backward()
        same_everywhere(net.buffers())
        if how == "assigned":
            assert net.part.cache.tolist() == [40.0] * 16
        ddp.close()


@case
def buffers_that_change_on_one_rank():
    """All ranks raise, and say which buffer differs, and how."""
    for how in HOWS:
        net = Changes(how, herring.rank() == 1)
        ddp = herring.DistributedDataParallel(net)
        for step in range(2):
            ddp(mine(step)[0]).sum().backward()
        words = {
            "added": ("later2", "float32 [8]"),
            "removed": ("cache float32 [4]", "only 0"),
            "same bytes": ("cache float32 [4]", "[2, 2]"),
            "other dtype": ("cache float32 [4]", "float64 [4]"),
            "smaller": ("cache float32 [4]", "float32 [3]"),
        }.get(how, ("cache float32 [4]", "float32 [8]"))
        with raises(herring.MismatchError, *words, "rank 1"):
            ddp(mine(2)[0])
        ddp.close()


@case
def tensors_that_cannot_be_overwritten():
    """All ranks refuse before anything moves, also if only one of them has such a tensor."""

    def expanded():
        return torch.zeros(1).expand(4)

    def meta():
        return torch.zeros(4, device="meta")

    for make, words in ((expanded, "is expanded"), (meta, "has no values")):
        for ranks in ({0}, {1}, {0, 1, 2, 3}):
            net = nn.Linear(16, 4)
            net.register_buffer("odd", make() if herring.rank() in ranks else torch.zeros(4))
            everywhere = ranks == {0, 1, 2, 3}
            kind = herring.InvalidArgumentError if everywhere else herring.MismatchError
            with raises(kind, "odd", words):
                herring.DistributedDataParallel(net)
            with raises(kind, "odd", words):
                herring.broadcast_parameters(net.state_dict())
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with raises(herring.InvalidArgumentError, "not initialized"):
        herring.DistributedDataParallel(lazy)
    net = Changes("expanded")
    ddp = herring.DistributedDataParallel(net)
    for step in range(2):
        ddp(mine(step)[0]).sum().backward()
    with raises(herring.InvalidArgumentError, "cache", "is expanded"):
        ddp(mine(2)[0])
    ddp.close()


@case
def buffers_made_under_inference_mode():
    """A moving average's buffers, for example; they cannot be changed outside of that mode."""
    rank = herring.rank()
    net = nn.Linear(16, 4)
    with torch.inference_mode():
        net.register_buffer("average", torch.full((4,), float(rank)))
    ddp = herring.DistributedDataParallel(net)
    assert net.average.tolist() == [0.0] * 4
    with torch.inference_mode():
        net.average.fill_(rank + 5)
    ddp(mine(0)[0]).sum().backward()
    assert net.average.tolist() == [5.0] * 4
    herring.broadcast_parameters(net.state_dict(), 1)
    ddp.close()


@case
def what_each_rank_keeps():
    """torch's list of what not to touch: values, gradients and buffers stay each rank's own."""
    rank = herring.rank()

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.shard = nn.Linear(16, 4)
            self.top = nn.Linear(4, 1)
            self.register_buffer("mine", torch.full((2,), float(rank)))
            self.register_buffer("shared", torch.full((2,), float(rank)))

        def forward(self, x):
            return self.top(self.shard(x)).mean()

    names = ["shard.weight", "shard.bias", "mine"]
    for sync in ("full", "solo"):
        net = Experts()
        nn.init.constant_(net.shard.weight, rank + 1.0)
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            net, names
        )
        ddp = herring.DistributedDataParallel(net, sync=sync)
        with ddp.join() if sync == "full" else torch.enable_grad():
            for step in range(3):
                ddp(mine(step)[0]).backward()
                for _ in ddp.rounds():
                    pass
        for _ in ddp.flush():
            pass
        assert (net.shard.weight == rank + 1.0).all()
        assert net.mine.tolist() == [float(rank)] * 2
        assert net.shared.tolist() == [0.0] * 2
        if sync == "full":
            same_everywhere([net.top.weight.grad])
            gradients = herring.allgather(net.shard.bias.grad.reshape(1, -1))
            weights = herring.allgather(net.top.weight.detach().reshape(1, -1))
            same_everywhere([weights])
            assert not gradients.isnan().any()
            own = torch.autograd.grad(net(mine(2)[0]), [net.shard.weight])[0]
            assert net.shard.weight.grad.norm() > 0 and own.norm() > 0
        ddp.close()
    net = Experts()
    net._ddp_params_and_buffers_to_ignore = [name for name, _ in net.named_parameters()]
    with raises(herring.InvalidArgumentError, "requires a gradient"):
        herring.DistributedDataParallel(net)
    net = Experts()
    net._ddp_params_and_buffers_to_ignore = names if rank == 1 else []
    with raises(herring.MismatchError, "shard.weight"):
        herring.DistributedDataParallel(net)


@case
def no_memory_on_one_rank():
    """A rank without memory for what it receives refuses on all ranks, and all can go on."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    model = nn.Linear(4096, 4096, bias=False)  # 64 MiB, too much for what the limit leaves
    model.register_buffer("large", torch.zeros(4096, 4096))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if herring.rank() == 0:
        model(torch.ones(1, 4096)).sum().backward()
        optimizer.step()
    herring.barrier()
    for call in (
        lambda: herring.broadcast_parameters(model.named_parameters(), name="large"),
        lambda: herring.broadcast_optimizer_state(optimizer, name="large_state"),
        lambda: herring.DistributedDataParallel(model),
    ):
        if herring.rank() == 1:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limit[1]))
        try:
            kind = RuntimeError if herring.rank() == 1 else herring.InvalidArgumentError
            with raises(kind, "can't allocate memory"):
                call()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limit)
        assert herring.allreduce(torch.ones(3), "sum").tolist() == [herring.size()] * 3
