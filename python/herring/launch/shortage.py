"""Whether the kernel killed a process of the job because memory was short."""

from __future__ import annotations

import os

from herring.base import cgroup
from herring.base.units import show_size


class Shortage:
    """Watches how many processes the kernel kills for lack of memory."""

    def __init__(self) -> None:
        self._kills = cgroup.oom_kills()

    def look(self) -> bool:
        """Returns whether the kernel has killed a process since the last look."""
        before, self._kills = self._kills, cgroup.oom_kills()
        return None not in (before, self._kills) and self._kills > before

    @staticmethod
    def explain(peak: int) -> str:
        """Returns the end of a sentence about a process that the kernel killed.

        Args:
            peak: The most bytes that the process had in memory.
        """
        limit = cgroup.memory_limit()
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if limit is not None and limit < total:
            room = f"its control group may use {show_size(limit)}"
        else:
            room = f"the machine has {show_size(total)}"
        return f" because memory was short: {room}, and it had used up to {show_size(peak)} itself"
