"""Maps names that users know from other libraries to the names that Herring uses."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

_OPERATORS = {"Average": "average", "Sum": "sum", "Min": "min", "Max": "max", "Product": "product"}
# Names in other libraries, and what to write instead with Herring.
_INSTEAD = {
    "get_rank": "rank()",
    "get_world_size": "size()",
    "world_size": "size()",
    "local_world_size": "local_size()",
    "get_local_rank": "local_rank()",
    "cross_rank": "node_rank()",
    "cross_size": "num_nodes()",
    "all_reduce": "allreduce(array), which averages unless op= says something else",
    "all_gather": "allgather(array), which returns a new array",
    "all_gather_into_tensor": "allgather(array), which returns a new array",
    "all_gather_object": "allgather_object(obj)",
    "all_to_all": "alltoall(array, splits)",
    "all_to_all_single": "alltoall(array, splits)",
    "alltoallv": "alltoall(array, splits)",
    "reduce_scatter_tensor": "reduce_scatter(array)",
    "reducescatter": "reduce_scatter(array)",
    "bcast": "broadcast(array, root)",
    "broadcast_object_list": "broadcast_object(obj, root)",
    "recv": "receive(array, source)",
    "irecv": "receive_async(array, source)",
    "isend": "send_async(array, to)",
    "init_process_group": (
        "init(), or torch.distributed.init_process_group('herring') for torch's own functions"
    ),
    "destroy_process_group": "shutdown()",
    "finalize": "shutdown()",
    "add_process_set": "new_group(ranks)",
    "ProcessSet": "new_group(ranks)",
    "ReduceOp": "the operator's name: op='sum', 'average', 'min', 'max' or 'product'",
    "DDP": "herring.torch.DistributedDataParallel",
    **{name: f"the operator's name: op='{op}'" for name, op in _OPERATORS.items()},
}
# Names that exist for some frameworks only, and the module that has them.
_OF_ADAPTERS = {
    "DistributedDataParallel": "herring.torch",
    "DistributedGradientTape": "herring.tensorflow",
    "DistributedOptimizer": "herring.torch (or .keras)",
    "StepLogger": "herring.torch",
    "StepSecondsCallback": "herring.keras",
    "SyncBatchNorm": "herring.torch",
    "allreduce_": "herring.horovod.torch, which has Horovod's API",
    "broadcast_": "herring.torch",
    "broadcast_optimizer_state": "herring.torch",
    "broadcast_parameters": "herring.torch",
    "broadcast_variables": "herring.tensorflow (or .keras)",
}
# Names that a module had in an earlier release, and the module that has them now.
_MOVED = {"herring.tensorflow.DistributedOptimizer": "herring.keras"}


def moved(module: str, name: str) -> Any:
    """Returns what a module had under this name in an earlier release, with a warning, or None."""
    home = _MOVED.get(f"{module}.{name}")
    if home is None:
        return None
    warnings.warn(
        f"{module}.{name} is {home}.{name}; the next release has it only there",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(importlib.import_module(home), name)


def missing(
    module: str, name: str, has: Sequence[str], of_herring: Sequence[str]
) -> AttributeError:
    """Returns the error for an attribute that a module lacks; it says what to use instead."""
    text = f"module {module!r} has no attribute {name!r}"
    close = difflib.get_close_matches(name, has, 1)
    if name in _INSTEAD:
        text += f"; use {_INSTEAD[name]}"
    elif name in of_herring:
        text += f"; it is in herring itself: herring.{name}"
    elif name in _OF_ADAPTERS and _OF_ADAPTERS[name] != module:
        text += f"; it is in {_OF_ADAPTERS[name]}"
    elif close and not name.startswith("_"):
        text += f"; did you mean {close[0]!r}?"
    return AttributeError(text)
