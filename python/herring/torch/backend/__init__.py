"""The backend "herring" of torch.distributed, in Python.

    import herring.torch

    torch.distributed.init_process_group("herring")

See docs/torch-distributed.md.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import register_rendezvous_handler

import herring
from herring.errors import ConfigurationError, InvalidArgumentError
from herring.torch.backend.base import BaseProcessGroup
from herring.torch.backend.group import HerringProcessGroup
from herring.torch.backend.joining import join_by_store, rendezvous
from herring.torch.backend.monitored import answer_monitored_barrier
from herring.torch.backend.reconfiguring import ReconfigurableProcessGroup
from herring.torch.backend.sharded import answer_for_sharded_tensors

__all__ = ["HerringProcessGroup", "create", "register"]


def create(options: Any, settings: Any = None) -> HerringProcessGroup:
    """Makes a process group; torch calls this function on the group's members.

    Args:
      options: torch's `_DistributedBackendOptions`.
      settings: ``pg_options`` of `init_process_group`: a dictionary with settings for
        `herring.init`, or None.

    Returns:
      The process group.

    Raises:
      InvalidArgumentError: `settings` is something else.
      ConfigurationError: The group has some of the ranks, and this process is not in such a job.
        Or the environment or a setting is missing, wrong or contradictory.
      AuthenticationError: The rendezvous does not know this job's secret.
      TimeoutError: Not all processes came in time; the message lists those that are missing.
    """
    if settings is not None and not isinstance(settings, dict):
        raise InvalidArgumentError(
            f"pg_options is {settings!r}; for herring it must be a dictionary with settings of "
            "herring.init(), or None"
        )
    timeout = options.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=float(timeout))
    # Not in register(), which must not load torch's sharding where nobody begins a group.
    answer_for_sharded_tensors(lambda group: isinstance(group, BaseProcessGroup))
    ranks = list(options.global_ranks_in_group)
    rank, size = options.group_rank, options.group_size
    owns = False
    if getattr(options, "enable_reconfigure", False):  # from torch 2.14 on
        return ReconfigurableProcessGroup(options.store, rank, size, timeout, settings or {})
    if ranks:
        _require_job()
    else:
        owns = join_by_store(options.store, rank, size, settings or {})
    return HerringProcessGroup(options.store, rank, size, timeout, ranks, owns)


def _require_job() -> None:
    """Raises ConfigurationError unless the default group has the same ranks as the job."""
    place = dist.get_rank(), dist.get_world_size()
    found = (herring.rank(), herring.size()) if herring.is_initialized() else None
    if found == place:
        return
    now = "there is none" if found is None else f"here it is rank {found[0]} of {found[1]}"
    raise ConfigurationError(
        f"new_group(backend='herring') needs a job of Herring in which this process is rank "
        f"{place[0]} of {place[1]} too, but {now}: begin with init_process_group('herring'), or "
        "if you use another backend too, call herring.init() on every rank before new_group()"
    )


def register() -> None:
    """Registers the backend, and ``init_method="herring://"``, with torch.distributed."""
    dist.Backend.register_backend("herring", create, extended_api=True, devices=["cpu", "cuda"])
    answer_monitored_barrier(lambda group: isinstance(group, BaseProcessGroup))
    try:
        register_rendezvous_handler("herring", rendezvous)
    except RuntimeError:
        pass  # the handler is registered already
    _hear_of_time_outs()


def _hear_of_time_outs() -> None:
    """Lets `torch.distributed.breakpoint` change timeouts.

    Below 2.14, torch changes those of Gloo and NCCL only.
    """
    original = getattr(distributed_c10d, "_set_pg_timeout", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def set_time_out(timeout: timedelta, group: Any = None) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, HerringProcessGroup):
            chosen.set_timeout(timeout)
            if {*chosen._device_map().values()} <= {"herring"}:
                return  # torch would warn that it knows none of the backends
        original(timeout, group)

    distributed_c10d._set_pg_timeout = set_time_out


if dist.is_available():
    register()
