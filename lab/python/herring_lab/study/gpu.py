"""Times all-reduces of arrays on this machine's GPUs over the message size (``herring study gpu``).

The paper is that on scalable distributed DNN training using TensorFlow and CUDA-aware MPI, section
V, figures 4 and 6. Recursive halving and doubling with sums by GPU kernels is compared with the
same algorithm with sums by the host's processors, and with a ring. The paper has 16 hosts with one
GPU each. Here workers are processes of one machine that communicate over its loopback interface.
What Herring's own paper measures on GPUs is in `gpu_training`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from herring.errors import ConfigurationError
from herring_lab.competitors import MissingLibraryError
from herring_lab.report import Chart, Table
from herring_lab.study.gpu_training import Machine, training_jobs, training_tables
from herring_lab.study.jobs import run_workers

#: The algorithms to compare; the first is the one with sums by the host's processors.
ALGORITHMS = ("butterfly", "cuda-butterfly", "ring")
#: Sizes in bytes, 8 B to 256 MB, as in the paper.
SIZES = (*(8 * 4**power for power in range(13)), 256 << 20)
_QUICK = (8, 32 << 10, 2 << 20)
_WARMUP = 3  # the first iteration loads a kernel
_NAMES = {
    "butterfly": "butterfly, sums by the host",
    "cuda-butterfly": "butterfly, sums by the GPU",
    "ring": "ring, sums by the host",
}


def gpu_study(quick: bool, iterations: int, report: Callable[[int, int, str], None]) -> list[Table]:
    """Times all algorithms and sizes, and then averages and steps (`gpu_training`).

    Args:
      quick: whether to only test the setup, with few sizes and a small model.
      iterations: timed iterations per point.
      report: called before each measurement begins, with (done, all, what).

    Raises:
      MissingLibraryError: torch is missing.
      ConfigurationError: a GPU, or a compiler for its kernels is missing, or a job failed.
    """
    try:
        import torch
    except ImportError:
        raise MissingLibraryError("gpu needs torch: pip install torch") from None
    gpus = torch.cuda.device_count()
    if gpus == 0:
        raise ConfigurationError("herring study gpu needs a GPU, and torch sees none")
    name = torch.cuda.get_device_name(0)
    machine = Machine(gpus, name, torch.distributed.is_nccl_available())
    jobs = list(training_jobs(machine, quick))
    workers = machine.workers[-1]
    first, last = len(ALGORITHMS), len(ALGORITHMS) + len(jobs)
    rows = []
    for number, algorithm in enumerate(ALGORITHMS):
        report(number, last, f"{algorithm}, {workers} workers")
        rows += run_workers(
            "herring_lab.study.gpu:times",
            workers,
            algorithm=algorithm,
            sizes=list(_QUICK if quick else SIZES),
            iterations=iterations,
            device="cuda",
        )
    return [
        *tables_of(rows, workers, gpus, iterations, name),
        *training_tables(
            machine, jobs, iterations, lambda done, what: report(first + done, last, what)
        ),
    ]


def times(
    algorithm: str, sizes: Sequence[int], iterations: int, device: str
) -> list[dict[str, Any]]:
    """Times all-reduces in a worker of a job.

    Args:
      algorithm: one of `ALGORITHMS`.
      sizes: sizes of the array in bytes.
      iterations: timed iterations per size.
      device: torch's name of the device; workers share the GPUs evenly.

    Returns:
      For each size ``algorithm``, ``bytes`` and ``seconds``. The seconds are the median over the
      iterations of the slowest worker's time, from the call until the result is on the GPU.

    Raises:
      ConfigurationError: a sum was wrong, or the GPU did not compute the sums that it should.
    """
    import numpy as np
    import torch

    import herring
    import herring.torch

    if device == "cuda":
        torch.cuda.set_device(herring.rank() % torch.cuda.device_count())
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows = []
    for size in sizes:
        tensor = torch.empty(size // 4, dtype=torch.float32, device=device)
        seconds = np.zeros(iterations)
        for iteration in range(-_WARMUP, iterations):
            tensor.fill_(1)
            synchronize()
            herring.barrier()
            start = time.monotonic()
            herring.torch.allreduce(tensor, "sum", algorithm=algorithm)
            synchronize()
            if iteration >= 0:
                seconds[iteration] = time.monotonic() - start
        if not bool((tensor == herring.size()).all()):
            raise ConfigurationError(f"{algorithm}, {size} bytes: the sum is wrong")
        herring.allreduce(seconds, "max")
        rows.append(
            {"algorithm": algorithm, "bytes": size, "seconds": statistics.median(seconds.tolist())}
        )
    expected = len(sizes) * (iterations + _WARMUP) if algorithm == "cuda-butterfly" else 0
    if (taken := herring.stats()["gpu_sums"]) != expected and device == "cuda":
        raise ConfigurationError(
            f"{algorithm}: the GPU computed the sums of {taken} all-reduces, not of {expected}; "
            "the log says why"
        )
    return rows


def tables_of(
    rows: Sequence[dict[str, Any]], workers: int, gpus: int, iterations: int, name: str
) -> list[Table]:
    """Returns a table of the times, and one of the ratios to those with the GPU's sums.

    Args:
      rows: the results of `times` for all `ALGORITHMS`.
      workers: the number of workers.
      gpus: the number of GPUs that the workers shared.
      iterations: timed iterations per point.
      name: the name of the GPUs.
    """
    at = {(row["algorithm"], row["bytes"]): row["seconds"] for row in rows}
    sizes = sorted({size for _, size in at})
    shown = [
        {"algorithm": algorithm, "bytes": size, "microseconds": 1e6 * at[algorithm, size]}
        for algorithm in ALGORITHMS
        for size in sizes
    ]
    ratios = []
    for size in sizes:
        by_gpu = at["cuda-butterfly", size]
        ratios.append(
            {
                "bytes": size,
                "by_host_sums": at["butterfly", size] / by_gpu,
                "by_ring": at["ring", size] / by_gpu,
            }
        )
    shared = "one each" if gpus >= workers else f"which share {gpus}"
    title = f"All-reduce of float32 on GPUs ({name}), {workers} workers of one machine, {shared}"
    notes = [
        f"median of {iterations} iterations of the slowest worker's time, until the result is on "
        "the GPU; results are checked",
        "butterfly and ring: the array is copied to host memory, the host's processors add, and "
        "the result is copied back, as the paper's MPI does; cuda-butterfly: kernels add, as in "
        "its MPI-Opt",
        "not shown here: the paper's network and its 16 hosts (workers talk over the loopback "
        "interface of one machine, and share its processors"
        + ("" if gpus >= workers else " and a GPU with its link")
        + "), its cache of pointers, GPUDirect RDMA, and NCCL",
    ]
    names = {**_NAMES, "by_host_sums": "than sums by the host", "by_ring": "than the ring"}
    times_chart = Chart(
        "bytes",
        ["microseconds"],
        "size of the array (bytes)",
        "time of an all-reduce (us)",
        by="algorithm",
        x_scale="log",
        y_scale="log",
        names=names,
    )
    ratio_chart = Chart(
        "bytes",
        ["by_host_sums", "by_ring"],
        "size of the array (bytes)",
        "sums by the GPU are faster by",
        x_scale="log",
        names=names,
    )
    return [
        Table("gpu-times", title, shown, times_chart, notes),
        Table("gpu-ratio", f"{title}: other times by that of cuda-butterfly", ratios, ratio_chart),
    ]
