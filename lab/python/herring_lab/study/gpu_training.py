"""Averages gradients and trains on this machine's GPUs (``herring study gpu``).

The paper is Herring's: figure 10 (how long gradients take to be averaged), table I (how long a step
takes if gradients are averaged in pieces of a given size) and figure 11 (samples per second, and
scaling efficiency). The paper has 8 to 512 GPUs on up to 64 hosts with servers. Here workers are
processes of one machine, which need neither a network nor servers. So nothing here shows that
gradients cross a network once.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from herring.errors import ConfigurationError
from herring_lab.report import Chart, Table
from herring_lab.study.jobs import run_workers

#: Bytes of float32 gradients: 25 to 400 million parameters, as in figure 10.
SIZES = (100_000_000, 200_000_000, 400_000_000, 800_000_000, 1_600_000_000)
#: Bytes that are averaged at once, as in table I; 0 stands for all gradients of the model.
THRESHOLDS = (0, 200_000_000, 50_000_000, 25_000_000)
_WARMUP = 3
_SEQUENCES, _WORDS = 8, 128  # the batch of a worker
_NAMES = {"herring": "Herring", "nccl": "NCCL", "gloo": "Gloo", "alone": "one worker"}


class Machine:
    """The GPUs of this machine, and the library that Herring is compared with on them.

    Attributes:
      gpus: the number of GPUs.
      name: the name of the GPUs.
      peer: ``nccl`` if two workers can have a GPU each, and otherwise ``gloo``, because NCCL takes
        one worker on a GPU.
      workers: the numbers of workers that average: 2, 4 and so on up to the number of GPUs.
    """

    def __init__(self, gpus: int, name: str, has_nccl: bool) -> None:
        self.gpus = gpus
        self.name = name
        self.peer = "nccl" if gpus > 1 and has_nccl else "gloo"
        self.workers = [1 << power for power in range(1, max(2, gpus.bit_length()))]

    @property
    def notes(self) -> list[str]:
        """What the paper has, and this machine cannot show."""
        notes = ["not shown here: the paper's network, its servers, and more than one host"]
        if self.gpus == 1:
            notes.append(
                "both workers share one GPU, its link and its memory, and NCCL takes one worker "
                "on a GPU, so Gloo stands in its place"
            )
        elif self.peer == "gloo":
            notes.append("this build of torch has no NCCL, so Gloo stands in its place")
        return notes


class Job(NamedTuple):
    """A job of workers that measures part of a table."""

    table: str
    function: str
    workers: int
    options: dict[str, Any]

    @property
    def what(self) -> str:
        """What is measured, for the progress."""
        return f"{self.table}: {_NAMES[self.options['library']]}, workers: {self.workers}"


def training_tables(
    machine: Machine, jobs: Sequence[Job], iterations: int, report: Callable[[int, str], None]
) -> list[Table]:
    """Measures averages, steps by threshold, and throughput.

    Args:
      machine: the GPUs, and the library to compare with.
      jobs: what `training_jobs` returned.
      iterations: timed iterations per point.
      report: called before each job begins, with the number of jobs done, and what comes.

    Returns:
      Tables for figure 10, table I and, with at least two GPUs, figure 11.

    Raises:
      ConfigurationError: a job failed, or its average was wrong.
    """
    rows: dict[str, list[dict[str, Any]]] = {"averages": [], "steps": [], "throughput": []}
    for number, job in enumerate(jobs):
        report(number, job.what)
        rows[job.table] += run_workers(
            f"{__name__}:{job.function}",
            job.workers,
            iterations=iterations,
            device="cuda",
            **job.options,
        )
    tables = [
        averages_table(rows["averages"], machine, iterations),
        thresholds_table(rows["steps"], machine, iterations),
    ]
    if rows["throughput"]:
        tables.append(throughput_table(rows["throughput"], machine, iterations))
    return tables


def training_jobs(machine: Machine, quick: bool) -> Iterator[Job]:
    """Yields the jobs that measure on this machine.

    Args:
      machine: the GPUs, and the library to compare with.
      quick: whether to only test the setup, with little data and a small model.
    """
    libraries = ("herring", machine.peer)
    sizes = [4_000_000] if quick else list(SIZES)
    for workers in machine.workers:
        for library in libraries:
            yield Job("averages", "averages", workers, {"library": library, "sizes": sizes})
    most = machine.workers[-1]
    for library in libraries:
        for threshold in THRESHOLDS[:1] if quick else THRESHOLDS:
            options = {"library": library, "threshold": threshold, "small": quick}
            yield Job("steps", "steps", most, options)
    if machine.gpus == 1:
        return
    for workers, names in [(1, ("alone",)), *((count, libraries) for count in machine.workers)]:
        for library in names:
            options = {"library": library, "threshold": None, "small": quick}
            yield Job("throughput", "steps", workers, options)


def averages(
    library: str, sizes: Sequence[int], iterations: int, device: str
) -> list[dict[str, Any]]:
    """Times averages of gradients in a worker of a job; results are checked.

    Args:
      library: ``herring``, whose planned reductions average 50 gradients as in training, or
        ``nccl`` or ``gloo``, which average one array.
      sizes: bytes of all gradients.
      iterations: timed iterations per size.
      device: ``cuda`` or ``cpu``; workers share the GPUs evenly.

    Returns:
      For each size ``library``, ``workers``, ``bytes`` and ``seconds``: the median over the
      iterations of the slowest worker's time.

    Raises:
      ConfigurationError: an average was wrong, or NCCL would have two workers on one GPU.
    """
    from herring.bench.communicator import Communicator, HerringCommunicator
    from herring.bench.gpus import Gpus
    from herring.bench.measure import Request, measure
    from herring_lab.competitors import open_peer

    gpus = Gpus("herring study gpu") if device == "cuda" else None
    own = library == "herring"
    communicator: Communicator = (
        HerringCommunicator(gpus=gpus) if own else open_peer(library, gpus=gpus)
    )
    rows = []
    for size in sizes:
        request = Request(
            size,
            warmup=_WARMUP,
            iterations=iterations,
            check=True,
            operation="planned" if own else "allreduce",
        )
        measured = measure(communicator, request)
        if measured.wrong:
            raise ConfigurationError(f"{library}, {size} bytes: {measured.wrong} elements differ")
        rows.append(
            {
                "library": library,
                "workers": communicator.size,
                "bytes": size,
                "seconds": statistics.median(measured.times),
            }
        )
    if not own:
        communicator.close()
    return rows


def steps(
    library: str, threshold: int | None, iterations: int, device: str, small: bool
) -> list[dict[str, Any]]:
    """Times steps in a worker that trains a model of BERT-large's size on random words.

    Args:
      library: ``herring`` averages by `herring.torch.DistributedDataParallel`; ``nccl`` and
        ``gloo`` by torch's; ``alone`` does not average.
      threshold: bytes of gradients that are averaged at once; 0: all; None: the library chooses.
      iterations: timed steps.
      device: ``cuda`` or ``cpu``; workers share the GPUs evenly.
      small: whether to train a small model instead.

    Returns:
      One row: ``library``, ``workers``, ``threshold`` (bytes, at most the model's, or None) and
      ``seconds``: the median over the steps of the slowest worker's time.

    Raises:
      ConfigurationError: the workers ended with different parameters.
    """
    import numpy as np
    import torch

    import herring

    here = torch.device(device)
    if device == "cuda":
        here = torch.device("cuda", herring.rank() % torch.cuda.device_count())
        torch.cuda.set_device(here)
    model = _bert(small).to(here)
    nbytes = sum(part.numel() * part.element_size() for part in model.parameters())
    at_once = None if threshold is None else min(threshold or nbytes, nbytes)
    wrapper, close = _wrapped(model, library, at_once)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(herring.rank())
    words = torch.randint(model.words, (_SEQUENCES, 16 if small else _WORDS), device=here)
    seconds = np.zeros(iterations)
    for iteration in range(-_WARMUP, iterations):
        herring.barrier()
        start = time.monotonic()
        with torch.autocast(device, torch.bfloat16):
            loss = wrapper(words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        if iteration >= 0:
            seconds[iteration] = time.monotonic() - start
    herring.allreduce(seconds, "max")
    _require_equal(model, library)
    del loss, wrapper  # torch may hang in the end of a group that its wrapper outlives.
    close()
    return [
        {
            "library": library,
            "workers": herring.size(),
            "threshold": at_once,
            "seconds": statistics.median(seconds.tolist()),
        }
    ]


def _require_equal(model: Any, library: str) -> None:
    """Raises ConfigurationError if workers, whose words differ, have other parameters."""
    import torch

    import herring

    parts = torch.stack([part.detach().double().sum() for part in model.parameters()])
    if len({tuple(each) for each in herring.allgather_object(parts.tolist())}) > 1:
        raise ConfigurationError(f"{library}: the workers ended with different parameters")


def _wrapped(model: Any, library: str, at_once: int | None) -> tuple[Any, Callable[[], None]]:
    """Returns the model as `library` averages it, and what to call after the wrapper is freed."""
    if library == "alone":
        return model, lambda: None
    if library == "herring":
        import herring.torch

        wrapper = herring.torch.DistributedDataParallel(model, buffer_bytes=at_once or 0)
        return wrapper, lambda: None
    import torch
    import torch.distributed as dist

    from herring_lab.competitors import torch_rendezvous

    rank, size, method = torch_rendezvous(os.environ)
    dist.init_process_group(library, init_method=method, rank=rank, world_size=size)
    wrapper = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=at_once and at_once / (1 << 20), gradient_as_bucket_view=True
    )
    return wrapper, dist.destroy_process_group


def _bert(small: bool) -> Any:
    """Returns an encoder with BERT-large's layers, whose output is the loss of guessing words."""
    import torch
    from torch import nn

    words, width, layers, heads = (500, 32, 2, 2) if small else (30522, 1024, 24, 16)

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = words
            self.table = nn.Embedding(words, width)
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            hidden = self.encoder(self.table(batch))
            found = nn.functional.linear(hidden, self.table.weight)
            return nn.functional.cross_entropy(found.float().flatten(0, 1), batch.flatten())

    torch.manual_seed(0)
    return Bert()


def averages_table(rows: Sequence[dict[str, Any]], machine: Machine, iterations: int) -> Table:
    """Returns the table of figure 10, from the results of `averages`."""
    at = {(row["library"], row["workers"], row["bytes"]): row["seconds"] for row in rows}
    shown = [
        {
            "series": f"{_NAMES[row['library']]}, {row['workers']} workers",
            "library": row["library"],
            "workers": row["workers"],
            "megabytes": row["bytes"] / 1e6,
            "milliseconds": 1e3 * row["seconds"],
            "by_herring": row["seconds"] / at["herring", row["workers"], row["bytes"]],
        }
        for row in rows
    ]
    notes = [
        f"median of {iterations} iterations of the slowest worker's time; results are checked",
        f"by_herring: the time divided by Herring's; {_NAMES[machine.peer]} averages one array, "
        "Herring 50 gradients, as in training",
        *machine.notes,
    ]
    chart = Chart(
        "megabytes",
        ["milliseconds"],
        "size of the gradients (MB)",
        "time to average them (ms)",
        by="series",
        x_scale="log",
        y_scale="log",
    )
    title = f"Gradients averaged on one machine ({machine.name}), as in Herring's figure 10"
    return Table("gpu-averages", title, shown, chart, notes)


def thresholds_table(rows: Sequence[dict[str, Any]], machine: Machine, iterations: int) -> Table:
    """Returns the table that is like the paper's table I, from the results of `steps`."""
    most = max(row["threshold"] for row in rows)
    whole = {row["library"]: row["seconds"] for row in rows if row["threshold"] == most}
    shown = [
        {
            "library": row["library"],
            "threshold_megabytes": row["threshold"] / 1e6,
            "steps_per_second": 1 / row["seconds"],
            "step_milliseconds": 1e3 * row["seconds"],
            "by_whole": row["seconds"] / whole[row["library"]],
        }
        for row in rows
    ]
    workers = rows[0]["workers"]
    notes = [
        f"median of {iterations} steps of the slowest worker's time, BERT-large in bfloat16 with "
        f"float32 gradients, {_SEQUENCES} sequences of {_WORDS} words per worker, SGD",
        "threshold: gradients that are averaged at once, as soon as they are there; the first row "
        "of a library averages all after the backward pass; by_whole: the time divided by that",
        *machine.notes,
    ]
    chart = Chart(
        "threshold_megabytes",
        ["step_milliseconds"],
        "gradients that are averaged at once (MB)",
        "time of a step (ms)",
        by="library",
        x_scale="log",
        names=_NAMES,
    )
    title = (
        f"Steps over the size of what is averaged at once ({machine.name}, {workers} workers), "
        "as in Herring's table I"
    )
    return Table("gpu-thresholds", title, shown, chart, notes)


def throughput_table(rows: Sequence[dict[str, Any]], machine: Machine, iterations: int) -> Table:
    """Returns the table of figure 11, from the results of `steps`, one of them ``alone``."""
    (alone,) = (row["seconds"] for row in rows if row["library"] == "alone")
    shown = [
        {
            "library": row["library"],
            "workers": row["workers"],
            "sequences_per_second": row["workers"] * _SEQUENCES / row["seconds"],
            "efficiency": alone / row["seconds"],
        }
        for row in rows
    ]
    notes = [
        f"median of {iterations} steps of the slowest worker's time, BERT-large in bfloat16, "
        f"{_SEQUENCES} sequences of {_WORDS} words per worker; each worker has a GPU, and each "
        "library averages at once what it chooses",
        "efficiency: the throughput divided by that of as many workers that average nothing",
        *machine.notes,
    ]
    chart = Chart(
        "workers",
        ["sequences_per_second"],
        "number of GPUs",
        "sequences per second",
        by="library",
        names=_NAMES,
    )
    title = f"Training over the number of GPUs ({machine.name}), as in Herring's figure 11"
    return Table("gpu-throughput", title, shown, chart, notes)
