"""The state of elastic training, in a job that keeps its workers."""

from __future__ import annotations

import itertools

import torch
from torch import nn

import herring.horovod.torch as hvd
from herring.horovod.common import elastic

from .support import case, mlp, raises, same


def filled(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@case
def elastic_state():
    rank = hvd.rank()
    model = mlp(rank + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(rank):  # ranks other than 0 have momentum, and a schedule that is further
        sum(parameter.sum() for parameter in model.parameters()).backward()
        optimizer.step()
        schedule.step()
    state = hvd.elastic.TorchState(
        model, optimizer, schedule=schedule, epoch=10 + rank, seen=[rank]
    )
    state.sync()
    same(model)
    assert optimizer.param_groups[0]["lr"] == 0.1 and schedule.last_epoch == 0
    assert not any("momentum_buffer" in one for one in optimizer.state.values()), optimizer.state
    assert state.epoch == 10 and state.seen == [0] and state.schedule is schedule

    def step() -> list[float]:
        optimizer.zero_grad()
        sum((parameter**2).sum() for parameter in model.parameters()).backward()
        optimizer.step()
        state.epoch += 1
        state.seen.append(state.epoch)
        return [parameter.sum().item() for parameter in model.parameters()]

    step()
    state.commit()
    state.epoch = 99
    state.restore()
    assert state.epoch == 11 and state.seen == [0, 11]
    # What was saved does not change with what training goes on with.
    first = [step(), step()]
    state.restore()
    assert state.seen == [0, 11]
    assert [step(), step()] == first
    state.restore()
    assert [step(), step()] == first


@case
def elastic_state_of_the_furthest():
    rank = hvd.rank()
    model = nn.Linear(2, 2)
    filled(model, float(rank))
    state = hvd.elastic.TorchState(model=model, place=rank)
    assert state.optimizer is None
    state._advance = [0, 3, 3, 1][rank]
    elastic._begin(state)
    assert state.place == 1 and model.bias.tolist() == [1.0, 1.0]
    assert state._advance == 4
    state.restore()
    assert state.place == 1 and model.bias.tolist() == [1.0, 1.0]
    elastic._Training.root = 0


@case
def elastic_values_are_replaced():
    state = hvd.elastic.TorchState(model=nn.Linear(2, 2), batch=0)
    other = nn.Linear(2, 2)
    filled(other, float(hvd.rank()))
    state.model, state.batch = other, hvd.rank()
    state.sync()
    assert other.bias.tolist() == [0.0, 0.0] and state.batch == 0
    with torch.no_grad():
        other.bias.add_(1)
    state.restore()
    assert other.bias.tolist() == [0.0, 0.0]
    raises(TypeError, "TorchState.model", setattr, state, "model", 3)


@case
def elastic_objects():
    resets = []
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, batch=hvd.rank())
    state.register_reset_callbacks([lambda: resets.append(state.batch)])
    state.on_reset()
    assert resets == [hvd.rank()]
    state.sync()
    state.batch += 5
    state.check_host_updates()
    state.restore()
    assert state.batch == 0

    class Own(hvd.elastic.State):
        def sync(self) -> None:
            self.value = self._bcast_object(hvd.rank())

    own = Own(hvd.broadcast_object, hvd.rank)
    raises(NotImplementedError, "", own.commit)

    @hvd.elastic.run
    def train(given: Own, more: int) -> int:
        """Trains."""
        return given.value + more

    # The job is not elastic: errors are raised as always.
    assert train(own, more=3) == 3 and train.__doc__ == "Trains."
    fails = hvd.elastic.run(lambda _: 1 / 0)
    raises(ZeroDivisionError, "", fails, own)


@case
def elastic_sampler():
    size, rank = hvd.size(), hvd.rank()
    sampler = hvd.elastic.ElasticSampler(range(10 * size), seed=3)
    assert len(sampler) == 10
    everyone = hvd.allgather_object(list(sampler))
    assert sorted(itertools.chain(*everyone)) == list(range(10 * size))
    sampler.record_batch(0, 4)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    assert sampler.processed_num == 4 * size and len(sampler) == 6
    rest = hvd.allgather_object(list(sampler))
    assert [one[4:] for one in everyone] == rest
    sampler.record_batch(0, 6)
    state.restore()
    assert sampler.processed_num == 4 * size
    sampler.record_batch(0, 6)
    state.commit()
    sampler.reset()
    assert list(sampler) == [] and len(sampler) == 0
    sampler.set_epoch(1)
    assert sorted(itertools.chain(*hvd.allgather_object(list(sampler)))) == list(range(10 * size))
    assert hvd.allgather_object(list(sampler)) != everyone
    # The first samples are repeated if they do not divide evenly.
    uneven = hvd.elastic.ElasticSampler(range(size + 1), shuffle=False)
    assert list(uneven) == [rank, (size + rank) % (size + 1)]
