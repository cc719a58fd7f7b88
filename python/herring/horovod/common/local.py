"""Variables whose gradients are not averaged, and the check of the argument `groups`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from herring.errors import InvalidArgumentError
from herring.horovod.common.process_sets import ProcessSet


class Alone:
    """An averager that averages nothing, for a rank that is not in the process set."""

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients unchanged."""
        return list(gradients)


class LocalVariables:
    """The set of local variables: their gradients are not averaged.

    Args:
      scales: whether local gradients are divided by the number of ranks in the process set, so that
        they have the same scale as averaged gradients.
      divide: divides a gradient, or None, by the number of ranks in a process set.
    """

    def __init__(
        self, process_set: ProcessSet, *, scales: bool, divide: Callable[..., Any] | None = None
    ) -> None:
        self._process_set = process_set
        self._scales = scales
        self._divide = divide or _divided
        self._variables: dict[int, Any] = {}

    def add(self, variable: Any) -> None:
        """Adds a variable to the set."""
        native = _native(variable)
        self._variables[id(native)] = native

    def has(self, variable: Any) -> bool:
        """Returns whether a variable is in the set."""
        return id(_native(variable)) in self._variables

    def around(
        self,
        average: Callable[[list[Any], Sequence[Any]], list[Any]],
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> list[Any]:
        """Calls `average` with the gradients of the variables that are not local.

        Args:
          average: a function of gradients and their variables that returns the averages.

        Returns:
          For each variable, the average, or its own gradient, scaled or not, if it is local.
        """
        others = [i for i, v in enumerate(variables) if not self.has(v)]
        averages = average([gradients[i] for i in others], [variables[i] for i in others])
        found = dict(zip(others, averages))
        return [found[i] if i in found else self._own(one) for i, one in enumerate(gradients)]

    def _own(self, gradient: Any) -> Any:
        return self._divide(gradient, self._process_set) if self._scales else gradient


def _divided(gradient: Any, process_set: ProcessSet) -> Any:
    divisor = process_set.size() or 1
    if gradient is None or divisor == 1:
        return gradient
    if hasattr(gradient, "dense_shape"):  # tf.IndexedSlices
        return type(gradient)(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return gradient / divisor


def _native(variable: Any) -> Any:
    """Returns a Keras variable's tf.Variable, because tapes may see either; else `variable`."""
    value = getattr(variable, "_value", None)
    return value if hasattr(variable, "path") and hasattr(value, "assign") else variable


def variables_of(layers: Any) -> list[Any]:
    """Returns the trainable variables of a Keras layer or a list of layers; none for None."""
    listed = [] if layers is None else layers if isinstance(layers, Iterable) else [layers]
    found: list[Any] = []
    for layer in listed:
        if not hasattr(layer, "trainable_variables"):
            raise InvalidArgumentError(
                f"local_layers contains {layer!r}; it must be a Keras layer or a list of them"
            )
        found += layer.trainable_variables
    return found


def check_groups(groups: Any, num_groups: int) -> None:
    """Checks the arguments that group gradients, which have no effect in Herring."""
    given = num_groups if groups is None else groups
    if isinstance(given, int) and given >= 0:
        return
    if isinstance(given, (list, tuple)) and all(isinstance(one, (list, tuple)) for one in given):
        return
    raise InvalidArgumentError(
        f"groups is {given!r}; it must be an integer, 0 or more, or a list of lists of variables"
    )
