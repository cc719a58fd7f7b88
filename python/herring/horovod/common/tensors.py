"""What differs between frameworks where a collective is started: their tensors."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Tensors"]


class Tensors(abc.ABC):
    """How tensors of a framework get into memory that operations take, and back.

    A host tensor is what operations take: it has a shape and a dtype, and lies on the host. Where
    tensors stay on a GPU, it is a tensor there.
    """

    @abc.abstractmethod
    def checked(self, tensor: Any, kind: str) -> Any:
        """The tensor as the methods below take it, without its graph.

        Raises:
          InvalidArgumentError: not a tensor, or not one that can be sent.
        """

    @abc.abstractmethod
    def dtype_of(self, dense: Any) -> str:
        """The name of its dtype."""

    @abc.abstractmethod
    def has_floats(self, dense: Any, kind: str) -> bool:
        """Whether it is of floats.

        Raises:
          InvalidArgumentError: its dtype cannot be reduced.
        """

    def stay(self, dense: Sequence[Any]) -> bool:
        """Whether an all-reduce or a broadcast takes all of these on the GPU where they lie."""
        del dense
        return False

    def staying(self, dense: Any, *, own: bool) -> Any:
        """A tensor that stays on its GPU as one run of memory there, `own` as of `reducible`."""
        raise NotImplementedError

    def exported(self, there: Any) -> Any:
        """What operations take for a tensor that stays."""
        return there

    @abc.abstractmethod
    def reducible(self, dense: Any, kind: str, *, own: bool) -> Any:
        """A host tensor with the values, of a dtype that operations reduce.

        Args:
          dense: the tensor.
          kind: Horovod's name of the collective.
          own: whether it will be written to, and so may not be the memory of the tensor.
        """

    @abc.abstractmethod
    def scaled(self, host: Any, factor: float) -> Any:
        """The floats of a host tensor times a factor, in place or not."""

    @abc.abstractmethod
    def widened(self, dense: Any, factor: float) -> Any:
        """Integers as a new host tensor of float64, times a factor and cut towards zero."""

    @abc.abstractmethod
    def narrowed(self, found: Any, like: Any) -> Any:
        """A host tensor, or an array, in the dtype of a tensor: floats are cut for integers."""

    @abc.abstractmethod
    def movable(self, dense: Any, kind: str, *, own: bool) -> Any:
        """A host tensor that a broadcast takes, `own` as of `reducible`."""

    def moved(self, host: Any, like: Any) -> Any:
        """What a broadcast has left there, in the dtype and shape of a tensor."""
        del like
        return host

    @abc.abstractmethod
    def rows(self, dense: Any, kind: str) -> Any:
        """A host tensor [rows, ...] that gathers of lists take; a scalar is one row."""

    def words(self, rows: Any) -> Any:
        """The same rows in a dtype that other operations take which only move data."""
        return rows

    @abc.abstractmethod
    def viewed(self, found: np.ndarray, like: Any, shape: Sequence[int]) -> Any:
        """What has come as a host tensor in the dtype of a tensor."""

    @abc.abstractmethod
    def bytes_of(self, dense: Any, kind: str) -> np.ndarray:
        """The bytes of its values, in order."""

    @abc.abstractmethod
    def exact(self, raw: np.ndarray, like: Any) -> np.ndarray:
        """Bytes of floats in the dtype of a tensor as float32 or float64."""

    def like(self, tensor: Any, dense: Any) -> Any:
        """What is kept of a tensor until its result is there; has its shape and dtype.

        Args:
          tensor: as the caller gave it.
          dense: what `checked` made of it.
        """
        del tensor
        return dense

    def new(self, found: Any, like: Any) -> Any:
        """A host tensor as a result: where the tensor lies, and of its kind."""
        del like
        return found

    @abc.abstractmethod
    def write(self, found: Any, tensor: Any) -> None:
        """Copies a host tensor into a tensor, unless that is the same memory."""

    def counts(self, counts: np.ndarray, like: Any) -> Any:
        """Numbers of rows (int32) as a result."""
        return self.new(counts, like)
