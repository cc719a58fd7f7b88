"""The state of elastic training with PyTorch, and a sampler that divides data anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import herring
from herring.arrays.arguments import count_of, shown
from herring.elastic.state import Part, Stateful
from herring.elastic.state import State as _State
from herring.errors import InvalidArgumentError
from herring.torch.ddp import DistributedDataParallel
from herring.torch.diloco import DiLoCo
from herring.torch.ownership import retire_ended
from herring.torch.state import broadcast_optimizer_state, broadcast_tensors


class _Model(Part):
    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def begin(self) -> None:
        for parameter in self._module.parameters():
            retire_ended(parameter)  # a wrapper that the program still holds
            parameter.grad = None  # of a step that did not end

    def send(self, root: int, name: str) -> None:
        tensors = [one for one in self._module.state_dict().values() if torch.is_tensor(one)]
        broadcast_tensors([one.detach() for one in tensors], root, name=name)


class _Optimizer(Part):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def send(self, root: int, name: str) -> None:
        broadcast_optimizer_state(self._optimizer, root, name=name)

    def counts_steps(self, step: Callable[[], None]) -> bool:
        self._optimizer.register_step_post_hook(lambda *_: step())
        return True


class _Sampler(Stateful):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self.is_own = type(sampler).state_dict is ElasticSampler.state_dict

    def stepped(self) -> None:
        self._value.advance()


class _Meetings(Part):
    """Ranks that meet seldom: outer copies and the place in the schedule go to all."""

    def __init__(self, diloco: DiLoCo) -> None:
        self._diloco = diloco

    def begin(self) -> None:
        self._diloco.close()

    def note(self) -> Any:
        return _changed(self._diloco.state_dict(), torch.Tensor, lambda one: one.cpu().numpy())

    def take(self, note: Any) -> None:
        self._diloco.take_over(_changed(note, np.ndarray, torch.from_numpy))


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Returns nested containers with all values of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(one, kind, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(one, kind, change) for one in value)
    return value


class State(_State):
    """What training with PyTorch needs to go on after workers have gone or come.

        state = herring.torch.State(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    Modules and optimizers are sent as tensors, and only if a worker lacks them. With an optimizer,
    a step is a call of its `step`, and each step moves an `ElasticSampler` on. Give the model and
    the optimizer themselves, and wrap them inside the training function. A `DiLoCo` is made
    outside of it, and its block begins inside. See `herring.elastic.State` for other values.
    """

    def __init__(self, **values: Any) -> None:
        """Makes a state of these values.

        Args:
          **values: Modules, one optimizer, an `ElasticSampler`, a `DiLoCo`, and others by name.

        Raises:
          InvalidArgumentError: A value is a wrapper of Herring, there are several optimizers, or a
            name cannot be used.
        """
        optimizers = [name for name, one in values.items() if _is_optimizer(one)]
        if len(optimizers) > 1:
            raise InvalidArgumentError(
                f"State: {' and '.join(optimizers)} are optimizers, but only one can count the "
                "steps; give the others as a value with state_dict and load_state_dict"
            )
        super().__init__(**values)

    def _part_of(self, name: str, value: Any) -> Part | None:
        if isinstance(value, DiLoCo):
            return _Meetings(value)
        if isinstance(value, DistributedDataParallel) or hasattr(value, "inner"):
            raise InvalidArgumentError(
                f"State: {name} is a {type(value).__name__}; give what it wraps, and wrap that "
                "inside the training function, which runs anew for each job"
            )
        if isinstance(value, torch.nn.Module):
            return _Model(value)
        if _is_optimizer(value):
            return _Optimizer(value)
        if isinstance(value, ElasticSampler):
            return _Sampler(value)
        return super()._part_of(name, value)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer)


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides what is left of an epoch between the workers of the present generation.

    All workers draw the same permutation, and use it up together: a step takes `batch_size` samples
    for each worker. Only the number of samples used up is kept, so any number of workers can go on
    from there. Each sample is used once in an epoch; the last step repeats some of the first ones
    if they do not divide evenly.

        sampler = herring.torch.ElasticSampler(data, batch_size=32)
        loader = DataLoader(data, batch_size=32, sampler=sampler)

    Attributes:
      epoch: The present epoch.
      position: The samples of this epoch that are used up.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        batches_per_step: int = 1,
    ) -> None:
        """Makes a sampler at the beginning of epoch 0.

        Args:
          data: A dataset with a length, or that length.
          batch_size: The samples of a worker in a batch, as the loader has it.
          shuffle: Whether each epoch has an order of its own.
          seed: The seed of these orders, the same on all ranks.
          batches_per_step: The batches whose gradients add up to one step.

        Raises:
          InvalidArgumentError: A number is out of range, or the data has no length.
        """
        try:
            self._length = data if isinstance(data, int) else len(data)
        except TypeError:
            raise InvalidArgumentError(
                f"ElasticSampler: data is {shown(data)}, which has no length"
            ) from None
        self._per_step = count_of(batch_size, "batch_size", 1) * count_of(
            batches_per_step, "batches_per_step", 1
        )
        self._batch = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0
        self.position = 0

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, unless it is the present one."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def advance(self) -> None:
        """Marks the samples of one step as used up. A `State` with an optimizer calls it."""
        self.position = min(self.position + self._per_step * herring.size(), self._length)

    def state_dict(self) -> dict[str, int]:
        """Returns the epoch and the position."""
        return {"epoch": int(self.epoch), "position": int(self.position)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Takes over the epoch and the position of another sampler over the same data."""
        self.epoch, self.position = state["epoch"], state["position"]

    def _left(self) -> int:
        """Returns the samples that are left for each worker."""
        return -(-(self._length - self.position) // herring.size())

    def __len__(self) -> int:
        """Returns the number of samples that are left for this worker."""
        return self._left()

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(self._length, device="cpu")
        if self._shuffle:
            generator = torch.Generator("cpu").manual_seed(self._seed + self.epoch)
            order = torch.randperm(self._length, generator=generator, device="cpu")
        size, rank = herring.size(), herring.rank()
        left = order[self.position :]
        padding = self._left() * size - len(left)
        left = torch.cat([left, order.repeat(-(-padding // max(self._length, 1)))[:padding]])
        whole = len(left) // (size * self._batch) * size * self._batch
        # Each step takes consecutive samples: first those of rank 0, then those of rank 1.
        for start in range(0, whole, size * self._batch):
            begin = start + rank * self._batch
            yield from left[begin : begin + self._batch].tolist()
        share = (len(left) - whole) // size
        begin = whole + rank * share
        yield from left[begin : begin + share].tolist()
