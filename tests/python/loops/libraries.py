"""Libraries a loop can train with: Herring, torch's DistributedDataParallel over Gloo, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import nn

import herring.torch as herring

BUFFER_BYTES = 2048


class Library:
    """The parts of a training script that depend on the library.

    Attributes:
      rank: the rank of this worker.
      size: the number of workers in the job.
    """

    def __init__(self) -> None:
        self.rank = herring.rank()
        self.size = herring.size()
        self.wrappers: list[Any] = []

    def wrap(self, module: nn.Module, **options: Any) -> Any:
        """Wraps the module so that gradients are averaged; options are those of torch's DDP."""
        raise NotImplementedError

    def wrap_optimizer(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any
    ) -> tuple[Any, Any]:
        """Returns a model and an optimizer, of which one averages: with Herring, the optimizer."""
        return self.wrap(module, **options), optimizer

    def thawed(self, model: Any) -> Any:
        """Returns the model to call after parameters of a `wrap_optimizer` model were unfrozen."""
        return model

    def no_sync(self, model: Any, optimizer: Any) -> Any:
        """Returns a context in which the results of `wrap_optimizer` do not average."""
        del optimizer
        return model.no_sync()

    def join(self, wrapper: Any) -> Any:
        """Returns a context in which ranks may have different numbers of batches."""
        raise NotImplementedError

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a new tensor that concatenates all ranks' tensors, which have equal shapes."""
        raise NotImplementedError

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums the tensors of all ranks in place."""
        raise NotImplementedError

    def allreduce_later(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts a sum in place; do not use the tensor before calling the returned function."""
        return lambda: self.allreduce(tensor)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrites the tensor with rank 0's tensor."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes everything that the loop has wrapped."""
        self.wrappers.clear()


class Herring(Library):
    """The library under test, which needs none of the options of torch's DDP.

    Fusion buffers are small, so that even small models have several of them in flight and gradients
    that straddle two.
    """

    def wrap(self, module, **options):
        del options
        wrapper = herring.DistributedDataParallel(module, buffer_bytes=BUFFER_BYTES)
        self.wrappers.append(wrapper)
        return wrapper

    def wrap_optimizer(self, module, optimizer, **options):
        del options
        wrapper = herring.DistributedOptimizer(
            optimizer, module.named_parameters(), buffer_bytes=BUFFER_BYTES
        )
        self.wrappers.append(wrapper)
        return module, wrapper

    def no_sync(self, model, optimizer):
        return optimizer.no_sync()

    def join(self, wrapper):
        return wrapper.join()

    def allgather(self, tensor):
        return herring.allgather(tensor)

    def allreduce(self, tensor):
        return herring.allreduce(tensor, "sum")

    def allreduce_later(self, tensor):
        return herring.allreduce_async(tensor, "sum").wait

    def broadcast(self, tensor):
        return herring.broadcast(tensor)

    def close(self):
        for wrapper in self.wrappers:
            wrapper.close()
        super().close()


def _pairwise_sum(parts: list[torch.Tensor]) -> torch.Tensor:
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


class Torch(Library):
    """The reference: torch's DDP and torch's collectives over Gloo.

    Gloo's ring adds in a different order from Herring, and rounding alone can change a result much.
    For example, a bias before BatchNorm has a gradient that is zero except for rounding, from which
    Adam makes whole steps; bfloat16 rounds coarsely. Therefore, with more than two workers, Gloo
    only gathers the summands, and they are added in Herring's order (for DDP in a communication
    hook). Then both libraries must compute the same bits, without a tolerance.
    """

    def __init__(self, *, plain: bool = False) -> None:
        """Creates the reference; with `plain`, Gloo itself sums the gradients."""
        super().__init__()
        self.plain = plain

    def wrap(self, module, **options):
        wrapper = nn.parallel.DistributedDataParallel(module, **options)
        if self.size > 2 and not self.plain:
            wrapper.register_comm_hook(None, self._average)
        return wrapper

    def thawed(self, model):
        return self.wrap(model.module)

    def _average(self, _state, bucket):  # torch rejects annotations that are strings
        buffer = bucket.buffer()
        parts = [torch.empty_like(buffer) for _ in range(self.size)]
        gathered = torch.distributed.all_gather(parts, buffer, async_op=True).get_future()
        return gathered.then(lambda _: _pairwise_sum(parts) / self.size)

    def join(self, wrapper):
        # Herring averages over the ranks that contributed.
        return wrapper.join(divide_by_initial_world_size=False)

    def allgather(self, tensor):
        return torch.cat(self._gather(tensor))

    def allreduce(self, tensor):
        return tensor.copy_(_pairwise_sum(self._gather(tensor)))

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        torch.distributed.all_gather(parts, tensor.contiguous())
        return parts

    def broadcast(self, tensor):
        torch.distributed.broadcast(tensor, 0)
        return tensor


class Apart(nn.Module):
    """A wrapper that does not average gradients."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)

    def no_sync(self):
        return contextlib.nullcontext()


class Nothing(Library):
    """Ranks start equal and exchange nothing, so a comparison must find errors."""

    def wrap(self, module, **options):
        del options
        for tensor in [*module.parameters(), *module.buffers()]:
            torch.distributed.broadcast(tensor.detach(), 0)
        return Apart(module)

    def join(self, wrapper):
        del wrapper
        return contextlib.nullcontext()

    def allgather(self, tensor):
        return torch.cat([tensor] * self.size)

    def allreduce(self, tensor):
        return tensor.mul_(self.size)

    def broadcast(self, tensor):
        return tensor
