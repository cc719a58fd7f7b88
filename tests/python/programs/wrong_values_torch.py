"""Passes values of wrong types to every public function and class of `herring.torch`."""

import inspect
import os
import warnings

import torch
import torch.distributed as dist

import herring
import herring.torch
from wrong_values import VALUES, a_function, found, fuzz, short

warnings.simplefilter("ignore")
herring.init(timeout="500ms")


REFUSED_BY_PICKLE = {"obj"}  # pickle raises its own errors
VALUES.extend(
    [
        torch.ones(3, dtype=torch.complex64),
        torch.nn.Linear(2, 2),
        torch.float32,
        dist.ReduceOp.BAND,
        dist.ReduceOp.SUM,
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.ones(3, dtype=torch.float8_e5m2),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 10, torch.quint8),
    ]
)
usual = {
    "tensor": lambda: torch.ones(3),
    "timeout": short,
    "parameters": dict,
    "optimizer": lambda: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1),
    "obj": lambda: 1,
    "ranks": lambda: [0],
    "module": lambda: torch.nn.Linear(2, 2),
    "named_parameters": lambda: list(torch.nn.Linear(2, 2).named_parameters()),
    "num_features": lambda: 3,
    "model": lambda: torch.nn.Linear(2, 2),
    "inner_optimizer": lambda: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1),
    "hook": lambda: a_function,
    "path": lambda: os.devnull,
    "data": lambda: [1, 2, 3],
    "batch_size": lambda: 2,
}
functions = {name: getattr(herring.torch, name) for name in herring.torch.__all__}
functions |= {
    f"functional.{name}": getattr(herring.torch.functional, name)
    for name in herring.torch.functional.__all__
}
REST = {
    "init",
    "shutdown",
    "backend",
    "functional",
    "Group",
    "Handle",
    "Join",
    "RoundInfo",
    "RoundStatistics",
    "Quorum",
    "Replay",
    "GradientReducer",
    "ddp_comm_hook",
    "State",
    "StepLogger",
    "SyncBatchNorm",
    "DistributedOptimizer",
    "DistributedDataParallel",
}
for name, call in functions.items():
    if name not in REST and not name.endswith("Error"):
        fuzz(f"torch.{name}", call, usual, REFUSED_BY_PICKLE)

SKIPPED = {
    "dim",
    "check_reduction",
    "find_unused_parameters",
    "static_graph",
    "gradient_as_bucket_view",
    "init_sync",
    "broadcast_buffers",
    "broadcast_parameters",
    "forward_sync_buffers",
}
fuzz("torch.DistributedDataParallel", herring.torch.DistributedDataParallel, usual, SKIPPED)


def optimizer(**options):
    herring.torch.DistributedOptimizer(**options).close()


optimizer.__signature__ = inspect.signature(herring.torch.DistributedOptimizer)
del usual["named_parameters"]
fuzz("torch.DistributedOptimizer", optimizer, usual, SKIPPED)
print("\n".join(found) or "all in words", flush=True)
