"""`torch.distributed.monitored_barrier`, which torch itself has for the backend gloo only."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from herring.errors import TimeoutError


def answer_monitored_barrier(ours: Callable[[Any], bool]) -> None:
    """Lets torch's function serve groups of Herring; other groups get torch's own."""
    original = dist.monitored_barrier
    if hasattr(original, "of_herring"):
        return

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        found: Any = dist.group.WORLD if group is None else group
        if not ours(found):
            return original(found, timeout, wait_all_ranks)
        limit = timeout if timeout is None or isinstance(timeout, timedelta) else float(timeout)
        if isinstance(limit, float):
            limit = timedelta(seconds=limit)
        return found.monitored_barrier(limit, wait_all_ranks)

    monitored_barrier.of_herring = True  # type: ignore[attr-defined]
    dist.monitored_barrier = monitored_barrier
    distributed_c10d.monitored_barrier = monitored_barrier


def failed_to_pass(
    error: TimeoutError, limit: timedelta, wait_all_ranks: bool, group: Any
) -> TimeoutError:
    """Returns the error of a monitored barrier, which begins with the words that gloo uses.

    Args:
      error: The error of the barrier, which names the ranks of the job that are missing.
      wait_all_ranks: Whether the first words name all missing ranks, or the first one.
    """
    text = str(error)
    told = re.search(r" waited \S+ \S+ for (.*?), which did not call it", text)
    missing = [int(rank) for rank in re.findall(r"\brank (\d+) \(", told[1])] if told else []
    ranks = sorted(dist.get_group_rank(group, rank) for rank in missing)
    if not ranks:
        return error
    if not wait_all_ranks:
        del ranks[1:]
    who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    milliseconds = round(limit.total_seconds() * 1000)
    return TimeoutError(f"{who} failed to pass monitoredBarrier in {milliseconds} ms: {text}")
