"""Tells which ranks train a wrapped model: all ranks, or a group."""

from __future__ import annotations

from typing import Any

from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError


class Membership:
    """The group of a wrapper.

    Copies of the wrapper share the group. Saving the wrapper loses it.
    """

    def __init__(self, group: Group | None) -> None:
        scope_of(group)
        self._group = group
        self._lost: tuple[int, ...] = ()

    def group(self) -> Group | None:
        """Returns the group; None means all ranks."""
        if self._lost:
            raise InvalidArgumentError(
                f"this model was saved while it was trained by the group of ranks "
                f"{list(self._lost)}, and the group is not saved; wrap its module again with group="
            )
        return self._group

    def __deepcopy__(self, memo: dict[int, Any]) -> Membership:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_group": None, "_lost": self._lost if self._group is None else self._group.ranks}
