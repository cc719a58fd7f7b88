"""An elastic program of Horovod's. Each epoch is compared with one process that has all its data.

Arguments: the worker that dies in its second epoch, as HOROVOD_RANK; a file that it leaves behind;
and options: "own" for a compressor of its own, "inside" for an optimizer that is made for each
generation. Training ends when the worker has come back and made an epoch.
"""

import copy
import gc
import os
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

BATCH = 2
VICTIM, FLAG, OPTIONS = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]


class Own(hvd.Compression.none):
    """Gradients are reduced tensor by tensor."""


hvd.init()
wanted = int(os.environ["HOROVOD_SIZE"])
torch.manual_seed(0)
inputs, targets = torch.randn(36, 4), torch.randn(36, 2)
torch.manual_seed(os.getpid())  # so that only the state makes workers equal


def new_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def new_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def distributed(optimizer):
    compression = Own if "own" in OPTIONS else hvd.Compression.none
    names = model.named_parameters()
    return hvd.DistributedOptimizer(optimizer, named_parameters=names, compression=compression)


def loss_of(model, samples):
    return torch.nn.functional.mse_loss(model(inputs[samples]), targets[samples])


model = new_model()
plain = new_optimizer(model)
optimizer = plain if "inside" in OPTIONS else distributed(plain)
sampler = hvd.elastic.ElasticSampler(range(len(inputs)))
loader = torch.utils.data.DataLoader(range(len(inputs)), batch_size=BATCH, sampler=sampler)
resets = []


def begin_epoch(state):
    state.batch, state.steps = 0, []
    state.begin = copy.deepcopy((model.state_dict(), state.optimizer.state_dict()))


def check_epoch(state):
    """Compares the epoch with a process that has made all of its steps alone."""
    other = new_model()
    stepper = new_optimizer(other)
    other.load_state_dict(state.begin[0])
    stepper.load_state_dict(copy.deepcopy(state.begin[1]))
    for samples in state.steps:
        stepper.zero_grad()
        loss_of(other, samples).backward()
        stepper.step()
    for one, two in zip(model.parameters(), other.parameters()):
        assert torch.allclose(one, two, atol=1e-5), (one, two)
    used = [sample for samples in state.steps for sample in samples]
    assert set(used) == set(range(len(inputs))), sorted(used)
    # Only the end of an epoch repeats samples.
    assert len(used) - len(inputs) < BATCH * wanted, sorted(used)


@hvd.elastic.run
def train(state):
    state.generations += 1
    wrapped = optimizer
    if "inside" in OPTIONS:
        gc.disable()  # wrappers of earlier generations stay alive
        wrapped = distributed(state.optimizer)
        torch.optim.lr_scheduler.StepLR(wrapped, 1000)  # refers to it in a circle
    if state.begin is None:
        begin_epoch(state)
    while state.epoch < 2 or state.full < 1:
        size = hvd.size()
        for number, samples in enumerate(loader):
            dies = state.epoch == 1 and number == 3 and os.environ["HOROVOD_RANK"] == VICTIM
            if dies and not FLAG.exists():
                FLAG.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            wrapped.zero_grad()
            loss_of(model, samples).backward()
            wrapped.step()
            state.steps.append([i for part in hvd.allgather_object(samples.tolist()) for i in part])
            state.sampler.record_batch(number, len(samples))
            state.batch += 1
            state.commit() if state.batch % 2 == 0 else state.check_host_updates()
        check_epoch(state)
        state.full += size == wanted and FLAG.exists()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        begin_epoch(state)
        state.commit()
    return hvd.size()


state = hvd.elastic.TorchState(
    *(model, optimizer),
    sampler=sampler,
    epoch=0,
    batch=0,
    steps=[],
    begin=None,
    full=0,
    generations=0,
)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
assert train(state) == wanted
# Programs evaluate their models when training has ended.
total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="evaluation").item()
values = hvd.allgather_object([p.tolist() for p in model.parameters()])
assert total == wanted and all(one == values[0] for one in values)
print(f"trained: generation {state.generations}, resets {resets}", flush=True)
