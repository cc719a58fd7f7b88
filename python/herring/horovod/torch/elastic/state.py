"""TorchState, the state of elastic training with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from herring.horovod.common.basics import rank
from herring.horovod.common.elastic import ObjectState, root
from herring.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class _Kept:
    """A value with a `state_dict`, and a copy of that."""

    def __init__(self, value: Any, send: Callable[[Any], None]) -> None:
        self._value = value
        self._send = send
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._value.state_dict())

    def restore(self) -> None:
        # A copy, because optimizers keep the tensors that they are given.
        self._value.load_state_dict(copy.deepcopy(self._saved))

    def send(self) -> None:
        self._send(self._value)


def _send_model(model: torch.nn.Module) -> None:
    broadcast_parameters(model.state_dict(), root())


def _send_optimizer(optimizer: torch.optim.Optimizer) -> None:
    broadcast_optimizer_state(optimizer, root())


def _send_state(value: Any) -> None:
    value.load_state_dict(broadcast_object(value.state_dict(), root()))


def _kept(value: Any) -> _Kept | None:
    """Returns what keeps a value, or None for an object that travels as it is."""
    if isinstance(value, torch.nn.Module):
        return _Kept(value, _send_model)
    if isinstance(value, torch.optim.Optimizer):
        return _Kept(value, _send_optimizer)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _Kept(value, _send_state)
    return None


class TorchState(ObjectState):
    """A state of models, optimizers, samplers and other objects, each an attribute.

    Modules and optimizers travel as tensors. Samplers, schedules of learning rates and others with
    `state_dict` and `load_state_dict` travel by these. Everything else travels as an object.

    Args:
      model: a module, or None.
      optimizer: an optimizer, also one of `hvd.DistributedOptimizer`, or None.
      **kwargs: further values by name.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        self._kept: dict[str, _Kept] = {}
        objects = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            kept = _kept(value)
            if kept is None:
                objects[name] = value
            else:
                super().__setattr__(name, value)
                self._kept[name] = kept
        super().__init__(broadcast_object, rank, **objects)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_kept", ()):
            kept = _kept(value)
            if kept is None:
                raise TypeError(f"TorchState.{name} is not a value with a state_dict any more")
            self._kept[name] = kept
        super().__setattr__(name, value)

    def save(self) -> None:
        """Keeps a copy of all values."""
        for kept in self._kept.values():
            kept.save()
        super().save()

    def restore(self) -> None:
        """Returns to the values that were saved last."""
        for kept in self._kept.values():
            kept.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of the rank that is furthest, and saves them (collective)."""
        for kept in self._kept.values():
            kept.send()
        super().sync()
