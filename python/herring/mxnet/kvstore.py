"""A KVStore of MXNet 1.9, for trainers that take one."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase

import herring
from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.mxnet.arrays import in_place, on_host

__all__ = ["KVStore"]


class KVStore(KVStoreBase):
    """Sums over all ranks, one operation per key; an optimizer stays with the trainer.

        trainer = gluon.Trainer(params, "sgd", kvstore=herring.KVStore())

    also as ``kvstore="dist_herring"``. Pass the batch size of all ranks together to
    ``trainer.step``, as these are sums. `DistributedTrainer` is faster: one plan for all gradients.
    """

    def __init__(self, *, name: str | None = None, group: Group | None = None) -> None:
        """Exchanges nothing yet.

        Args:
          name: of its operations; None: stores are numbered in the order in which they are made.
          group: those who take part; None: all ranks.

        Raises:
          ShutdownError: `herring.init` was not called.
        """
        self._name = name or name_of_next("kvstore", group)
        self._group = group
        scope_of(group)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Writes `value` of rank 0 (of the group) to `out` of all ranks (collective).

        Args:
          key: identifies it across ranks.
          value: an NDArray; not changed.
          out: an NDArray or a list of them.
          priority: not needed.
        """
        array = _first(value).copy()
        shared = in_place(array)
        herring.broadcast(shared, name=f"{self._name}.broadcast.{key}", group=self._group)
        _hand_out(array, shared, out)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Writes the sum of `value` over all ranks to `out` (collective).

        Args:
          key: identifies it across ranks.
          value: an NDArray, or a list of them, which are summed first.
          out: an NDArray or a list of them; None: `value`.
          priority: not needed: ranks may call in any order that fits.

        Raises:
          InvalidArgumentError: sparse.
        """
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(one.stype != "default" for one in values):
            raise InvalidArgumentError("sparse arrays are not summed; use sparse_grad=False")
        array = values[0].copy()
        for one in values[1:]:
            array += one.as_in_context(array.context)
        shared = in_place(array)
        herring.allreduce(shared, "sum", name=f"{self._name}.{key}", group=self._group)
        _hand_out(array, shared, value if out is None else out)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether it can do more than sum; it cannot."""
        return False

    @property
    def type(self) -> str:
        """Its kind."""
        return "herring"

    @property
    def rank(self) -> int:
        """This worker's, inside the group if there is one."""
        return scope_of(self._group).rank

    @property
    def num_workers(self) -> int:
        """How many take part."""
        return scope_of(self._group).size


def _first(value: Any) -> mx.nd.NDArray:
    return value[0] if isinstance(value, (list, tuple)) else value


def _hand_out(array: mx.nd.NDArray, shared: Any, out: Any) -> None:
    if not on_host(array):
        array[:] = shared
    for one in out if isinstance(out, (list, tuple)) else [out]:
        array.copyto(one)


# A Trainer of one context makes no store at all for a name without "dist" in it.
KVStoreBase.kv_registry["dist_herring"] = KVStore
