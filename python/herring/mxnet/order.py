"""Predicts the order in which a backward pass produces gradients from the forward pass before it.

MXNet's autograd has no hooks on gradients, but computes gradients in the reverse order of the
forward pass. A Gluon block asks each parameter for its values when the block uses the parameter. A
block that is not hybridized does so layer by layer; a hybridized block, in the order of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mxnet as mx

__all__ = ["UseOrder"]


class UseOrder:
    """Records the order in which parameters are first used while autograd is recording."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        """Starts recording.

        Args:
          parameters: the gluon.Parameter objects to watch.
        """
        self._parameters = list(parameters)
        self._used: dict[int, None] = {}
        for index, parameter in enumerate(self._parameters):
            parameter.data = self._noted(index, parameter.data)

    def _noted(self, index: int, data: Callable[..., Any]) -> Callable[..., Any]:
        def noting(ctx: Any = None) -> Any:
            found = data(ctx)
            if mx.autograd.is_recording():
                self._used.setdefault(index)
            return found

        return noting

    def end(self) -> list[int]:
        """Stops recording.

        Returns:
          The places of parameters in the order in which the backward pass produces their gradients:
          the parameter that was used first comes last. Unused parameters are left out.
        """
        for parameter in self._parameters:
            vars(parameter).pop("data", None)
        self._parameters = []
        return list(reversed(self._used))
