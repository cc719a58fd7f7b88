"""Averages the gradients of tapes and optimizers in planned rounds, or as lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

import herring
from herring.arrays.calls import name_of_next
from herring.arrays.runtime import is_elastic
from herring.horovod.common import rounds
from herring.horovod.common.adasum import require_power_of_two
from herring.horovod.common.compression import is_own, wire_dtype_of
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.local import Alone
from herring.horovod.common.operators import Adasum, Sum
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.tensorflow import mpi_ops
from herring.horovod.tensorflow.graph import now
from herring.tensorflow.averaging import TensorAverager


def make_averager(
    name: str,
    *,
    op: int,
    compression: Any,
    sparse_as_dense: bool,
    process_set: ProcessSet,
    numbered: bool = False,
) -> Any:
    """Creates an object that averages lists of gradients.

    Args:
      name: prefix of the operation names; the same on all ranks, different for each averager.
      numbered: whether `name` is the same for several averagers, which get numbers.

    Returns:
      An object with a method ``average(gradients, variables)``, which returns a list.

    Raises:
      InvalidArgumentError: the process set is not registered, or Adasum is used with a number of
        ranks that is not a power of two.
    """
    herring.rank()  # Raises an error if this process is not in a job.
    if process_set.included() is False:
        return Alone()
    group = group_of(process_set)
    if op == Adasum:
        require_power_of_two(process_set.size() or 1)
    if op != Adasum and is_own(compression):
        return _Planned(
            name,
            op="sum" if op == Sum else "average",
            wire_dtype=wire_dtype_of(compression),
            sparse="densify" if sparse_as_dense else "gather",
            group=group,
            divide_by_all=rounds.joined_as_zeros(),
            numbered=numbered,
        )
    name = name_of_next(name, group) if numbered else name
    return _Listed(name, op, compression, sparse_as_dense, process_set)


def divided(gradient: Any, process_set: ProcessSet) -> Any:
    """Returns a gradient, or None, divided by the number of ranks in the present job."""
    if gradient is None:
        return None
    divisor = tf.cast(now(lambda: process_set.size() or 1), gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / divisor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / divisor


class _Planned(TensorAverager):
    """Averages in planned rounds, in which ranks that have joined take part."""

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients over all ranks (collective), and raises Horovod's errors."""
        with internal_errors():
            return super().average(gradients, variables)

    def _rounds_of(self, key: Hashable, plan: Callable[[str], Any]) -> Any:
        found = super()._rounds_of(key, plan)
        rounds.reducers.add(found)
        return found


class _Listed:
    """Reduces a list of gradients as one operation, after a compressor has changed them."""

    def __init__(
        self, name: str, op: int, compression: Any, densify: bool, process_set: ProcessSet
    ) -> None:
        self._name = name
        self._compression = compression
        self._densify = densify
        self._options: dict[str, Any] = {"op": op, "process_set": process_set}
        self.follows = is_elastic() and process_set is global_process_set

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients over all ranks (collective).

        Args:
          gradients: for each variable, a tensor, tf.IndexedSlices or None; None must be at the same
            places on all ranks.

        Returns:
          For each variable, the average or None.
        """
        result: list[Any] = list(gradients)
        dense = []
        for i, one in enumerate(gradients):
            if isinstance(one, tf.IndexedSlices) and not self._densify:
                name = f"{self._name}.{i}"
                result[i] = mpi_ops.allreduce(one, name=name, **self._options)
            elif one is not None:
                dense.append(i)
        found = mpi_ops.grouped_allreduce(
            [tf.convert_to_tensor(gradients[i]) for i in dense],
            compression=self._compression,
            name=self._name,
            **self._options,
        )
        for i, one in zip(dense, found):
            result[i] = one
        return result
