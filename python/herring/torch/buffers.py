"""The buffers of a wrapped module, which all ranks get from one rank before each forward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.calls import called
from herring.arrays.groups import Group
from herring.errors import MismatchError
from herring.torch.state import broadcast_tensors
from herring.torch.tensors import FlatBytes, describe, obstacle, require_writable
from herring.torch.watch import registrations

_Homes = list[tuple[str, torch.nn.Module, str]]  # Name in the whole module, owner, name there.


class Buffers:
    """The present buffers of a module, also if it replaces, resizes, adds or removes some."""

    def __init__(self, module: torch.nn.Module, ignored: Collection[str]) -> None:
        """Finds the buffers."""

        def homes(module: torch.nn.Module) -> _Homes:
            return [
                (name, owner, key)
                for prefix, owner in module.named_modules()
                for key in owner._buffers
                if (name := f"{prefix}.{key}" if prefix else key) not in ignored
            ]

        self._homes = homes(module)
        self._relist = registrations.watch(module, homes, buffers=True)
        self._flat = FlatBytes([])
        self._forms: list[tuple[Any, ...]] | None = None  # agreed on by all ranks

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the buffers, each once, with their names."""
        if (homes := self._relist()) is not None:
            self._homes = homes
        seen: dict[int, tuple[str, torch.Tensor]] = {}
        for name, owner, key in self._homes:
            if (buffer := owner._buffers.get(key)) is not None:
                seen.setdefault(id(buffer), (name, buffer))
        return list(seen.values())

    def lines(self) -> list[str]:
        """Returns one line for each buffer, for `require_agreement`."""
        return [describe(f"buffer {name}", buffer) for name, buffer in self.named()]

    def broadcast(self, root: int, *, name: str, group: Group | None) -> None:
        """Overwrites the buffers with those of rank `root` (collective)."""
        named = self.named()
        forms = [(key, one.shape, one.stride(), one.dtype) for key, one in named]
        agreement, sent = "", named
        changed = forms != (self._forms or [])
        if changed:
            # All ranks make one call, whatever their buffers are, and it compares the lists.
            agreement = hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()
            if not named or any(obstacle(buffer) for _, buffer in named):
                sent = [("", torch.zeros(1, device="cpu"))]
            with called("broadcast", f"{name}.0", group):  # there may be no memory for it
                self._flat = FlatBytes(buffer for _, buffer in sent)
        if not sent:
            return
        # As in torch, autograd is not told. BatchNorm saves its statistics without using them, so a
        # second forward pass before backward() must not raise an error.
        unseen = [buffer.data for _, buffer in sent]
        try:
            broadcast_tensors(
                unseen, root, name=name, flat=self._flat, group=group, agreement=agreement
            )
        except MismatchError:
            require_agreement(self.lines(), what="buffer", name=name, group=group)
            raise
        if changed:
            require_writable(named, name)
            self._forms = forms
