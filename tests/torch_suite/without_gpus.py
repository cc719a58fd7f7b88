"""A plugin of pytest that lets torch's tests for GPUs run on processors, with forked workers.

`run.py --cpu` loads it. It takes away what skips a test where no GPU is, and the start of new
processes, which takes seconds for each test. Whether a test passes is decided by the test, and on
Gloo as on Herring. It also lets tests of torch 2.6 find names that newer releases have changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.pipelining._utils as pipelining
import torch.multiprocessing
import torch.testing._internal.common_cuda as cuda
import torch.testing._internal.common_distributed as distributed
import torch.testing._internal.common_fsdp as fsdp
import torch.testing._internal.common_utils as utils
import torch.testing._internal.distributed._tensor.common_dtensor as dtensor

LIMIT = int(os.environ["LIMIT"])  # seconds that a test may take, as run.py says
CONTINUOUS: Any = distributed.MultiProcContinuousTest  # runs many tests in the same processes
set_up = CONTINUOUS.setUp


def needless(*_arguments: Any, **_options: Any) -> Callable[[Any], Any]:
    """Stands for a decorator that skips a test without GPUs."""
    return lambda test: test


def fork(test: Any) -> None:
    test._start_processes(torch.multiprocessing.get_context("fork").Process)


def begin_anew(test: Any) -> None:
    """Lets a test have new processes if an earlier one has ended those of its class."""
    kind = type(test)
    if kind.poison_pill:
        for process in kind.processes:
            process.kill()
            process.join()
        kind._processes_spawned = kind.poison_pill = False
    set_up(test)


torch.multiprocessing.set_start_method("fork", force=True)
torch.set_num_threads(1)
torch.accelerator.device_count = lambda: 8
distributed.MultiProcessTestCase._spawn_processes = fork
for decorator in (
    *("skip_if_lt_x_gpu", "requires_nccl", "requires_nccl_version"),
    "requires_accelerator_dist_backend",
):
    setattr(distributed, decorator, needless)
dtensor.skip_if_lt_x_gpu = needless
distributed.skip_if_no_gpu = lambda test: test
distributed.TIMEOUT_DEFAULT, distributed.TIMEOUT_OVERRIDE = LIMIT - 20, {}
cuda.TEST_CUDA = cuda.TEST_MULTIGPU = utils.TEST_CUDA = utils.TEST_MULTIGPU = True
fsdp.DEVICE_COUNT = fsdp.FSDPTestContinuous.world_size = CONTINUOUS.world_size = 2
CONTINUOUS.setUp = begin_anew
distributed.MultiProcContinousTest = CONTINUOUS
pipelining.PipeliningShapeError = pipelining.PipeliningMetadataError
