"""An elastic program of Horovod's whose rank 1 raises a HorovodInternalError of its own, once.

With the argument "mismatch", ranks disagree instead, in every generation.
"""

import sys

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

hvd.init()
first = hvd.rank()
calls = []


@hvd.elastic.run
def train(state):
    calls.append(hvd.size())
    while state.batch < 6:
        if "mismatch" in sys.argv:
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="different")
        state.batch += 1
        state.model.weight.data += 1
        if state.batch == 3 and first == 1 and len(calls) == 1:
            raise HorovodInternalError("my own")
        hvd.allreduce(torch.ones(1), name="step")
        if state.batch == 2:
            state.commit()
    return state.model.weight.item() - state.began


model = torch.nn.Linear(1, 1)
state = hvd.elastic.TorchState(model=model, batch=0, began=model.weight.item())
steps = train(state)
assert calls == [2, 2], calls
assert round(steps) == 6, steps
print("went on", flush=True)
