"""Reduces tensors by Horovod's API.

A result is ready for the stream that is current during the call of `synchronize`.
"""

import torch

import herring.horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.cuda.set_device(rank % torch.cuda.device_count())
total = sum(r + 1 for r in range(size))
for start in (hvd.allreduce_async, hvd.allreduce_async_):
    tensor = torch.full((1_000_000,), float(rank), device="cuda")
    torch.cuda._sleep(20_000_000)
    tensor += 1
    handle = start(tensor, op=hvd.Sum)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = hvd.synchronize(handle)
        assert (found * 2 == 2 * total).all() and found.is_cuda
    assert (found is tensor) == (start is hvd.allreduce_async_)
    torch.cuda.synchronize()
pair = [torch.full((n,), rank + 1, device="cuda") for n in (7, 70_000)]
torch.cuda._sleep(20_000_000)
for one in pair:
    one += 1
assert all((one == total + size).all() for one in hvd.grouped_allreduce(pair, op=hvd.Sum))
assert (hvd.broadcast(pair[1], size - 1) == size + 1).all()
assert (hvd.allreduce(pair[1], op=hvd.Average) == int((total + size) / size)).all()
hvd.shutdown()
