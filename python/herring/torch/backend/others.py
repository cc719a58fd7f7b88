"""Makes other backends for their devices, as in ``init_process_group("cpu:herring,cuda:nccl")``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from herring.errors import ConfigurationError


def other_backend(
    group: dist.ProcessGroup,
    kind: str,
    name: str,
    given: Mapping[str, str],
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
) -> Any:
    """Makes and registers gloo or NCCL for one kind of device (collective); `name` may be empty."""
    own = dist.PrefixStore(f"herring-{kind}/", store)
    types = dist.ProcessGroup.BackendType
    if name == "gloo" and dist.is_gloo_available():
        backend = dist.ProcessGroupGloo(own, rank, size, timeout=timeout)
        group._register_backend(torch.device(kind), types.GLOO, backend)
        return backend
    if name == "nccl" and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        backend = dist.ProcessGroupNCCL(own, rank, size, options)
        group._register_backend(torch.device(kind), types.NCCL, backend)
        return backend
    if not name and kind not in ("cpu", "cuda"):
        raise ConfigurationError(
            f"no backend was given for tensors on {kind}, and herring has none: move the tensor to "
            "the CPU first"
        )
    if not name:
        both = ",".join(f"{one}:{other}" for one, other in {**given, kind: "herring"}.items())
        raise ConfigurationError(
            f"no backend was given for tensors on {kind}: name one as in "
            f"init_process_group('{both}')"
        )
    raise ConfigurationError(
        f"the backend {name!r} for tensors on {kind} is not available: besides herring there are "
        "gloo and nccl, if this torch was built with them"
    )
