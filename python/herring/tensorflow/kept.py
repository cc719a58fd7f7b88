"""Variables of the state of elastic training, with a copy to which training returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from herring.tensorflow.functions import broadcast_variables


class KeptVariables:
    """Variables, and the copy of them that a commit has made.

    Args:
      variables: returns the tf.Variable or keras.Variable objects, equally many on all ranks.
    """

    def __init__(self, variables: Callable[[], Iterable[Any]]) -> None:
        self._variables = variables
        self._saved: list[tuple[Any, tf.Tensor]] = []

    def save(self) -> None:
        """Keeps a copy, which shares the memory of a variable until that changes."""
        self._saved = [(one, tf.identity(one)) for one in self._variables()]

    def restore(self) -> None:
        """Returns to the copy, if there is one."""
        for variable, value in self._saved:
            variable.assign(value)

    def send(self, root: int, name: str) -> None:
        """Gives all ranks the values of rank `root` (collective)."""
        broadcast_variables(self._variables(), root, name=name)
