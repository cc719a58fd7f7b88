"""In which order a backward pass produces gradients, as the forward pass before it shows.

MXNet's autograd has no hooks on gradients. It computes them in the reverse order of the forward
pass, and a Gluon block asks each parameter for its values when it uses it: a block that is not
hybridized layer by layer, one that is hybridized in the order of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mxnet as mx

__all__ = ["UseOrder"]


class UseOrder:
    """Notes which parameters are used while gradients are recorded, in the order of first uses."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        """Begins to note.

        Args:
          parameters: each a gluon.Parameter.
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
        """Notes no more.

        Returns:
          Places of parameters in the order in which the backward pass produces their gradients:
          the one that was used first comes last. Parameters that were not used are left out.
        """
        for parameter in self._parameters:
            vars(parameter).pop("data", None)
        self._parameters = []
        return list(reversed(self._used))
