"""Variables whose gradients stay on each rank, and how gradients are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from herring.errors import InvalidArgumentError
from herring.horovod.common.process_sets import ProcessSet

__all__ = ["Alone", "LocalVariables", "check_groups", "variables_of"]


class Alone:
    """Averages nothing: for a rank that is not in the process set."""

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients."""
        return list(gradients)


class LocalVariables:
    """Variables whose gradients are not averaged.

    Args:
      process_set: who averages the others.
      scales: whether gradients of local ones are divided by the number of its ranks, so that they
        are to those of the others as if all had been averaged.
    """

    def __init__(self, process_set: ProcessSet, *, scales: bool) -> None:
        self._process_set = process_set
        self._scales = scales
        self._variables: dict[int, Any] = {}

    def add(self, variable: Any) -> None:
        """One more of them."""
        native = _native(variable)
        self._variables[id(native)] = native

    def around(
        self,
        average: Callable[[list[Any], Sequence[Any]], list[Any]],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> list[Any]:
        """Calls `average` with the gradients of the other variables.

        Args:
          average: takes gradients and their variables; returns averages.
          gradients: per variable a tensor, or None.
          variables: all.

        Returns:
          Per variable the average, or what becomes of a local gradient.
        """
        others = [i for i, v in enumerate(variables) if id(_native(v)) not in self._variables]
        averages = average([gradients[i] for i in others], [variables[i] for i in others])
        found = dict(zip(others, averages))
        divisor = (self._process_set.size() or 1) if self._scales else 1
        return [
            found[i] if i in found else _divided(one, divisor) for i, one in enumerate(gradients)
        ]


def _divided(gradient: Any, divisor: int) -> Any:
    if gradient is None or divisor == 1:
        return gradient
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        return type(gradient)(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return gradient / divisor


def _native(variable: Any) -> Any:
    """Of a variable of Keras on TensorFlow the tf.Variable: tapes know either."""
    value = getattr(variable, "_value", None)
    return value if hasattr(variable, "path") and hasattr(value, "assign") else variable


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of a Keras layer, or of a list of them; None: of none.

    Raises:
      InvalidArgumentError: something else is in the list.
    """
    listed = [] if layers is None else layers if isinstance(layers, Iterable) else [layers]
    found: list[Any] = []
    for layer in listed:
        if not hasattr(layer, "trainable_variables"):
            raise InvalidArgumentError(
                f"local_layers has {layer!r}; it must be a Keras layer or a list of them"
            )
        found += layer.trainable_variables
    return found


def check_groups(groups: Any, num_groups: int) -> None:
    """Raises InvalidArgumentError unless they say how gradients may be grouped."""
    given = num_groups if groups is None else groups
    if isinstance(given, int) and given >= 0:
        return
    if isinstance(given, (list, tuple)) and all(isinstance(one, (list, tuple)) for one in given):
        return
    raise InvalidArgumentError(
        f"groups is {given!r}; it must be an integer, 0 or more, or a list of lists of variables"
    )
