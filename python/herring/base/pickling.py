"""Pickles the objects that processes of a job send each other.

Pickle's own writer takes every torch tensor, but its reader refuses those of newer dtypes, such as
float8 and uint16, because their storages travel in torch's older format. Here a storage travels in
the present format of `torch.save`.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
from collections import ChainMap
from copyreg import dispatch_table
from typing import Any

loads = pickle.loads


def dumps(obj: Any) -> bytes:
    """Returns an object as pickle, or as cloudpickle if pickle cannot take it."""
    try:
        return _written(pickle.Pickler, obj)
    except (pickle.PicklingError, AttributeError, TypeError):
        if importlib.util.find_spec("cloudpickle") is None:
            raise
    return dumps_by_value(obj)


def dumps_by_value(obj: Any) -> bytes:
    """Returns an object as cloudpickle, with functions of the script itself; or ImportError."""
    import cloudpickle

    return _written(cloudpickle.Pickler, obj)


def _written(kind: Any, obj: Any) -> bytes:
    if torch := sys.modules.get("torch"):  # Without it there are no tensors.
        # cloudpickle's writer has a table of its own; picklers read the table when they are made.
        known = kind.dispatch_table if isinstance(kind.dispatch_table, ChainMap) else dispatch_table
        table = ChainMap({torch.UntypedStorage: _reduced_storage}, known)
        kind = type("Pickler", (kind,), {"dispatch_table": table})
    file = io.BytesIO()
    kind(file).dump(obj)
    return file.getvalue()


def _reduced_storage(storage: Any) -> tuple[Any, ...]:
    import torch

    file = io.BytesIO()
    torch.save(storage, file)
    return _storage, (file.getvalue(),)


def _storage(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)
