"""A communication hook for torch's own DistributedDataParallel."""

# This module does not postpone annotations, because torch inspects those of a hook.
from typing import Any

import torch
import torch.distributed as dist

import herring
from herring.arrays.groups import Group
from herring.arrays.operations import Handle
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.backend.group import HerringProcessGroup
from herring.torch.buckets import PlannedBuckets
from herring.torch.promises import Promise
from herring.torch.ranges import work_range


def ddp_comm_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients with Herring, whatever backend the wrapper uses.

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, herring.torch.ddp_comm_hook)

    Herring divides once, where the sum is complete, instead of before each addition.

    Args:
      state: The ranks that average. None means all ranks of the job that `herring.init` or
        ``init_process_group("herring")`` joined. Otherwise a `herring.Group`, a process group of
        the backend "herring", or a `herring.torch.PlannedBuckets`.
      bucket: The bucket that torch passes to the hook; [n], floats.

    Returns:
      A future of the average, which is written to the bucket's own memory. If the operation fails,
      the future raises a RuntimeError with the name and the text of Herring's error.

    Raises:
      InvalidArgumentError: `state` is something else.
      ShutdownError: This process is not in a job.
    """
    with work_range("ddp_comm_hook", f"bucket {bucket.index()}"):
        return _average(state, bucket)


def _average(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    if isinstance(state, PlannedBuckets):
        return state.average(bucket)
    buffer = bucket.buffer()
    if isinstance(state, HerringProcessGroup):
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.AVG
        work = state.allreduce([buffer], options)
        return work.get_future().then(lambda done: done.value()[0])
    if state is not None and not isinstance(state, Group):
        raise InvalidArgumentError(
            f"the state of ddp_comm_hook is {state!r}; it must be None, a herring.Group, a "
            "process group of the backend 'herring', or a herring.torch.PlannedBuckets"
        )
    taken, host = devices.taken(buffer.data, "ddp_comm_hook")
    promise = Promise([buffer.device] if buffer.is_cuda else None)

    def finish(handle: Handle) -> None:
        error = handle.exception()
        if error is not None:
            promise.settle(buffer, error)
            return
        if host is not None:
            buffer.copy_(host)
        promise.settle(buffer)

    herring.allreduce_async(taken, "average", group=state).add_done_callback(finish)
    return promise.future
