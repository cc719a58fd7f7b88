"""What programs share whose process groups change their members, with every version of torch.

Before torch 2.14, `init_process_group` cannot ask for such a group. The programs then make the
group itself, which has the same methods.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from herring.torch.backend.reconfiguring import ReconfigurableProcessGroup

HAS_FRONT = hasattr(dist, "_reconfigure")
RANK, SIZE = int(os.environ["PLACE"]), int(os.environ["PLACES"])
LIMIT = timedelta(seconds=600)

# A program that hangs ends with the stacks of its threads, which the test prints.
faulthandler.dump_traceback_later(float(os.environ["SECONDS_TO_LIVE"]), exit=True)


def done() -> None:
    """Says that everything was as expected, and ends the process without waiting for anybody."""
    print("well", flush=True)
    os._exit(0)


store = dist.FileStore(os.path.join(os.environ["FOLDER"], "store"), -1)


def begin() -> Any:
    """Returns a process group without members."""
    if not HAS_FRONT:
        return ReconfigurableProcessGroup(dist.PrefixStore("pg", store), RANK, SIZE, LIMIT, {})
    dist.init_process_group(
        "herring", store=store, rank=RANK, world_size=SIZE, timeout=LIMIT, enable_reconfigure=True
    )
    assert dist._supports_reconfigure()
    return dist.group.WORLD


def exchange(group: Any, turn: str, places: Sequence[int]) -> list[str]:
    """Returns the handles of the processes at `places`, of which this is one."""
    store.set(f"{turn}/{RANK}", group.get_reconfigure_handle())
    return [store.get(f"{turn}/{place}").decode() for place in places]


def meet(turn: str, places: Iterable[int]) -> None:
    """Waits until the processes at `places` are here too."""
    store.set(f"{turn}/{RANK}", "here")
    for place in places:
        store.get(f"{turn}/{place}")


def reconfigure(group: Any, uuid: int, handles: Any, seconds: float = 600.0) -> None:
    limit = timedelta(seconds=seconds)
    if HAS_FRONT:
        work = dist._reconfigure(uuid, handles, group, limit)
    else:
        work = group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=limit))
    assert work.wait() and work.is_success()


def require_sum(group: Any, places: Sequence[int]) -> None:
    """Requires that an all-reduce has these processes, and that ranks follow their order."""
    assert (group.rank(), group.size()) == (list(places).index(RANK), len(places))
    if HAS_FRONT:
        assert (dist.get_rank(), dist.get_world_size()) == (group.rank(), group.size())
    for elements in (3, 300_000):
        tensor = torch.full((elements,), 2.0**RANK)
        group.allreduce([tensor]).wait()
        assert bool((tensor == sum(2.0**place for place in places)).all()), (tensor[0], places)
    parts = [torch.zeros(1) for _ in places]
    group.allgather([parts], [torch.tensor([float(RANK)])]).wait()
    assert [int(part) for part in parts] == list(places), parts
