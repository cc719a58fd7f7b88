"""Answers `init_process_group` of a script that runs in an existing process group."""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from herring.errors import ConfigurationError


def answer_init_process_group() -> None:
    """Answers the script's own `init_process_group` with the group that exists already.

    This happens once; after that torch itself reports a second call as an error. Whatever backend
    the script asks for, it gets Herring's, even if it destroys the group and makes another.
    """
    original = dist.init_process_group
    begun = dist.group.WORLD
    answered = False

    @functools.wraps(original)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *arguments: Any,
        **options: Any,
    ) -> None:
        nonlocal answered
        if not dist.is_initialized():
            backend = "herring"
        group: Any = dist.group.WORLD
        if answered or group is None or group is not begun:
            return original(backend, init_method, timeout, world_size, rank, *arguments, **options)
        for what, given, found in (
            ("world_size", world_size, group.size()),
            ("rank", rank, group.rank()),
        ):
            if given not in (-1, None, found):
                raise ConfigurationError(
                    f"init_process_group was given {what}={given}, but the group that "
                    f"'python -m herring.torch' has begun has {what} {found}: leave it out, or "
                    "start the script without -m herring.torch"
                )
        answered = True
        if isinstance(timeout, timedelta):
            group.set_timeout(timeout)
        wanted = "" if backend is None else str(backend)
        if group.rank() == 0 and wanted.lower() not in ("", "herring", "undefined"):
            print(
                f"herring.torch: init_process_group({wanted!r}) goes on with Herring's group",
                file=sys.stderr,
                flush=True,
            )
        return None

    dist.init_process_group = init_process_group
    distributed_c10d.init_process_group = init_process_group
