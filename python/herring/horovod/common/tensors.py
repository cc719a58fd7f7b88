"""The interface through which collectives handle the tensors of any framework."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np


class Tensors(abc.ABC):
    """Converts a framework's tensors to arrays for operations, and results back to tensors.

    A host tensor is an array that operations accept: it has a shape and a dtype, and lies in host
    memory. If tensors stay on a GPU, the host tensor is a tensor on that GPU.
    """

    @abc.abstractmethod
    def checked(self, tensor: Any, kind: str) -> Any:
        """Returns the tensor, detached from its graph, in the form that the other methods take."""

    @abc.abstractmethod
    def dtype_of(self, dense: Any) -> str:
        """Returns the name of the tensor's dtype."""

    @abc.abstractmethod
    def has_floats(self, dense: Any, kind: str) -> bool:
        """Returns whether the tensor's elements are floats."""

    def stay(self, dense: Sequence[Any]) -> bool:
        """Returns whether an all-reduce or a broadcast takes all tensors on the GPU they lie on."""
        del dense
        return False

    def staying(self, dense: Any, *, own: bool) -> Any:
        """Returns a contiguous tensor on the same GPU; a copy if `own` is true."""
        raise NotImplementedError

    def exported(self, there: Any) -> Any:
        """Returns a tensor that stays on its GPU in a form that operations accept."""
        return there

    @abc.abstractmethod
    def reducible(self, dense: Any, kind: str, *, own: bool) -> Any:
        """Returns a host tensor with the same values, of a dtype that operations reduce.

        Args:
          own: whether the host tensor must have memory of its own, because it will be written to.
        """

    @abc.abstractmethod
    def scaled(self, host: Any, factor: float) -> Any:
        """Returns a host tensor of floats times a factor; may multiply in place."""

    @abc.abstractmethod
    def widened(self, dense: Any, factor: float) -> Any:
        """Converts integers to a new host tensor of float64, times a factor and truncated."""

    @abc.abstractmethod
    def narrowed(self, found: Any, like: Any) -> Any:
        """Converts a host tensor or array to the dtype of `like`, truncating floats to integers."""

    @abc.abstractmethod
    def movable(self, dense: Any, kind: str, *, own: bool) -> Any:
        """Returns a host tensor that a broadcast accepts; a copy if `own` is true."""

    def moved(self, host: Any, like: Any) -> Any:
        """Returns a host tensor after its broadcast, in the dtype and shape of `like`."""
        del like
        return host

    @abc.abstractmethod
    def rows(self, dense: Any, kind: str) -> Any:
        """Returns a host tensor of shape [rows, ...] for gathers of lists; a scalar is one row."""

    def words(self, rows: Any) -> Any:
        """Views rows in a dtype that is accepted by operations that only move data."""
        return rows

    @abc.abstractmethod
    def viewed(self, found: np.ndarray, like: Any, shape: Sequence[int]) -> Any:
        """Views received data as a host tensor of the given shape, in the dtype of `like`."""

    @abc.abstractmethod
    def bytes_of(self, dense: Any, kind: str) -> np.ndarray:
        """Returns the bytes of the tensor's elements, in C order."""

    @abc.abstractmethod
    def exact(self, raw: np.ndarray, like: Any) -> np.ndarray:
        """Converts bytes of floats in the dtype of `like` to float32 or float64 without loss."""

    def like(self, tensor: Any, dense: Any) -> Any:
        """Returns an object to keep until the result is complete, with the shape and dtype."""
        del tensor
        return dense

    def new(self, found: Any, like: Any) -> Any:
        """Converts a host tensor to the framework's kind of tensor, on the device of `like`."""
        del like
        return found

    @abc.abstractmethod
    def write(self, found: Any, tensor: Any) -> None:
        """Copies a host tensor into a tensor, unless both are the same memory."""

    def counts(self, counts: np.ndarray, like: Any) -> Any:
        """Converts numbers of rows (int32) to a result."""
        return self.new(counts, like)
