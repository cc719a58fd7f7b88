"""Tells when parts of a module may have been replaced, without walking the module in every step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as _module


class _Registrations:
    """Counts parameters and modules that are added to any module of this process.

    Attributes:
      count: The number of additions since the first `watch`.
    """

    def __init__(self) -> None:
        self.count = 0
        self._hooked = False

    def _note(self, *_: Any) -> None:
        self.count += 1

    def watch(
        self, module: torch.nn.Module
    ) -> Callable[[], list[tuple[str, torch.nn.Parameter]] | None]:
        """Returns a function that tells the named parameters of `module` after a change.

        The function returns the present list if it may have changed since the last call, else None.
        """
        if not self._hooked:
            self._hooked = True
            _module.register_module_parameter_registration_hook(self._note)
            _module.register_module_module_registration_hook(self._note)
        seen = self.count
        watched = weakref.ref(module)

        def changes() -> list[tuple[str, torch.nn.Parameter]] | None:
            nonlocal seen
            target = watched()
            if target is None or seen == self.count:
                return None
            seen = self.count
            return list(target.named_parameters())

        return changes


registrations = _Registrations()
