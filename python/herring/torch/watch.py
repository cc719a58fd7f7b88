"""Tells when parts of a module may have been replaced, without walking the module in every step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.nn.modules import module as _module

Parts = TypeVar("Parts")


class _Registrations:
    """Counts parameters, buffers and modules that are added to any module of this process."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def _counted(self, kind: str, register: Callable[[Callable[..., None]], object]) -> None:
        if kind not in self._counts:
            self._counts[kind] = 0

            def note(*_: object) -> None:
                self._counts[kind] += 1

            register(note)

    def watch(
        self,
        module: torch.nn.Module,
        listing: Callable[[torch.nn.Module], Parts],
        *,
        buffers: bool = False,
    ) -> Callable[[], Parts | None]:
        """Returns a function that tells the module's parts after a change.

        The function returns the present list if it may have changed since the last call, else None.
        """
        self._counted("module", _module.register_module_module_registration_hook)
        if buffers:
            self._counted("buffer", _module.register_module_buffer_registration_hook)
        else:
            self._counted("parameter", _module.register_module_parameter_registration_hook)
        kinds = ("module", "buffer" if buffers else "parameter")

        def count() -> int:
            return sum(self._counts[kind] for kind in kinds)

        seen = count()
        watched = weakref.ref(module)

        def changes() -> Parts | None:
            nonlocal seen
            target = watched()
            if target is None or seen == count():
                return None
            seen = count()
            return listing(target)

        return changes


registrations = _Registrations()
