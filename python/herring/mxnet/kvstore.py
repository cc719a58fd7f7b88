"""A KVStore for MXNet 1.9 trainers."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase

import herring
from herring.arrays.calls import called, name_of_next
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.mxnet.arrays import in_place, on_host

__all__ = ["KVStore"]


class KVStore(KVStoreBase):
    """Sums gradients over all ranks with one operation per key; the trainer runs the optimizer.

        trainer = gluon.Trainer(params, "sgd", kvstore=herring.KVStore())

    ``kvstore="dist_herring"`` has the same effect. Pass the total batch size of all ranks to
    ``trainer.step``, because the store sums and does not average. `DistributedTrainer` is faster
    because it has one plan for all gradients.
    """

    def __init__(self, *, name: str | None = None, group: Group | None = None) -> None:
        """Creates the store without communicating.

        Args:
          name: prefix of the operation names, the same on all ranks. None numbers the stores in the
            order of their creation, which must be the same on all ranks.
          group: the ranks that take part; None means all ranks.

        Raises:
          ShutdownError: `herring.init` was not called.
        """
        self._name = name or name_of_next("kvstore", group)
        self._group = group
        scope_of(group)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copies `value` of rank 0 of the group to `out` on all ranks (collective).

        Args:
          key: identifies the value across ranks.
          value: an NDArray, which is not changed. In a list, only the first array counts.
          out: an NDArray or a list of NDArrays, with the shape and dtype of `value`.
          priority: ignored.

        Raises:
          MismatchError: shapes or dtypes differ between ranks.
          PeerLostError: a worker or server died or left.
          TimeoutError: a rank did not make the call in time.
        """
        array = _first(value).copy()
        name = f"{self._name}.broadcast.{key}"
        with called("broadcast", name, self._group):
            shared = in_place(array, "herring.mxnet.KVStore.broadcast")
        herring.broadcast(shared, name=name, group=self._group)
        _hand_out(array, shared, out)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Writes the sum of `value` over all ranks to `out` (collective).

        Args:
          key: identifies the value across ranks.
          value: an NDArray, or a list of NDArrays, which are added up first.
          out: an NDArray or a list of NDArrays; None writes the sum to `value`.
          priority: ignored.

        Raises:
          InvalidArgumentError: an array is sparse.
          MismatchError: shapes or dtypes differ between ranks.
          PeerLostError: a worker or server died or left.
          TimeoutError: a rank did not make the call in time.
        """
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(one.stype != "default" for one in values):
            raise InvalidArgumentError("sparse arrays are not summed; use sparse_grad=False")
        array = values[0].copy()
        for one in values[1:]:
            array += one.as_in_context(array.context)
        name = f"{self._name}.{key}"
        with called("allreduce", name, self._group):
            shared = in_place(array, "herring.mxnet.KVStore.pushpull")
        herring.allreduce(shared, "sum", name=name, group=self._group)
        _hand_out(array, shared, value if out is None else out)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns False: the store has none of MXNet's optional capabilities."""
        return False

    @property
    def type(self) -> str:
        """The kind of store, "herring"."""
        return "herring"

    @property
    def rank(self) -> int:
        """This worker's rank, or its index in the group if the store has one."""
        return scope_of(self._group).rank

    @property
    def num_workers(self) -> int:
        """The number of workers that take part."""
        return scope_of(self._group).size


def _first(value: Any) -> mx.nd.NDArray:
    return value[0] if isinstance(value, (list, tuple)) else value


def _hand_out(array: mx.nd.NDArray, shared: Any, out: Any) -> None:
    if not on_host(array):
        array[:] = shared
    for one in out if isinstance(out, (list, tuple)) else [out]:
        array.copyto(one)


# A Trainer with one context creates a store only if the name contains "dist".
KVStoreBase.kv_registry["dist_herring"] = KVStore
