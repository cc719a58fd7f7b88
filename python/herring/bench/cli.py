"""The command line of ``python -m herring.bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.arrays.wire import PACKED_DTYPES
from herring.base.parts import missing_part
from herring.base.provenance import require_writable, write_results
from herring.bench import models, pattern, report, sizes
from herring.bench.communicator import Communicator, HerringCommunicator
from herring.bench.gpus import Gpus
from herring.bench.libraries import ALGORITHMS, OF_TORCH, PEERS
from herring.bench.measure import Request, measure
from herring.errors import ConfigurationError, HerringError
from herring.terminal.command_line import Parser, guarded, integer

_DESCRIPTION = """\
Measures how long operations take. Start the benchmark like a training script, once per worker:

  herring run -n 4 -- python -m herring.bench allreduce          one machine
  torchrun --nproc-per-node 4 -m herring.bench allreduce         the same under torchrun
  mpirun -n 4 python -m herring.bench allreduce                  ... or mpirun, or srun
  HERRING_RENDEZVOUS=10.0.0.1:29400 HERRING_RANK=0 ... python -m herring.bench allreduce
"""

_ALLREDUCE = """\
Times an all-reduce for each size; rank 0 prints a table.

Each iteration consists of a barrier and the operation. Its time is the time of the slowest rank.
Minimum, p50, p99 and maximum are over iterations; with fewer than 100 iterations, p99 is the
largest time. algbw is the size divided by the median. Over n equal links of B bytes/s, as many
dedicated servers as nodes reach algbw = B; a ring cannot exceed B * n / (2 (n - 1)).
"""

_PLANNED = """\
Times a round of planned gradients, the operation that training uses. All gradients become ready in
order, each fusion buffer is pushed when it is full, and the round ends when the last buffer is
averaged. Times, statistics and table have the same meaning as for allreduce.
"""

_VARIABLES = """\
Times one all-reduce for each gradient: all of them are started, then all are waited for. A gradient
of up to HERRING_SMALL_BYTES stays whole on one server, as in a classic parameter server; larger
gradients are divided over all servers. Compare the times with planned, which uses the same sizes.
"""

_EPILOG = """\
examples:
  # check the results and measure the times on two emulated nodes with two servers
  herring run -n 4 --nodes 2 --servers 2 -- python -m herring.bench allreduce --check
  # run the same loop with Gloo for comparison
  herring run -n 4 -- python -m herring.bench allreduce --peer gloo --op sum
  # use a ring between the workers instead of the servers
  herring run -n 4 --nodes 4 -- python -m herring.bench allreduce --algorithm ring
  # measure MPI with its own launcher and one of its algorithms
  mpiexec -n 4 python -m herring.bench allreduce --peer openmpi --algorithm ring --op sum
  # measure Horovod, which 'make peers' builds for this Python: .venv-peers/bin/python
  herring run -n 4 -- python -m herring.bench allreduce --peer horovod --op sum
  # measure arrays on GPUs, then the same with NCCL, which needs a GPU for each worker
  herring run -n 2 -- python -m herring.bench allreduce --device cuda --check
  herring run -n 2 -- python -m herring.bench allreduce --peer nccl --op sum
  # write the numbers to a file
  herring run -n 2 -- python -m herring.bench allreduce --sizes 1M,100M --json allreduce.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 for wrong elements, or 3 after an error."""
    return guarded(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    options = _parse(argv)
    try:
        communicator = _open(options)
        status = _run(communicator, options)
        # Leaving is collective, so it is done only on success: after an error, ranks may be gone.
        communicator.close()
    except HerringError as error:
        return _refused(error)
    return status


def _open(options: argparse.Namespace) -> Communicator:
    gpus = None
    if options.device == "cuda":
        gpus = Gpus("--peer nccl" if options.peer == "nccl" else "--device cuda")
    if options.peer != "herring":
        try:
            from herring_lab.competitors import open_peer
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"--peer {options.peer}: {missing_part(error) or error}"
            ) from error
        return open_peer(options.peer, options.algorithm, gpus)
    shared = options.array in (None, "herring")
    return HerringCommunicator(
        shared, options.algorithm or "herring", gpus, getattr(options, "wire_dtype", None)
    )


def _run(communicator: Communicator, options: argparse.Namespace) -> int:
    first = communicator.rank == 0
    try:
        _require_writable(communicator, options.json)
    except ConfigurationError as error:
        return _refused(error)
    if first:
        print(report.header(communicator, options.operation, communicator.describe()), flush=True)
    results: list[dict[str, Any]] = []
    for size in options.sizes:
        request = Request(
            size_bytes=size,
            dtype=options.dtype,
            op=options.op,
            warmup=options.warmup,
            iterations=options.iterations,
            batches=options.batches,
            check=options.check,
            operation=options.operation,
            gradients=getattr(options, "gradients", 0),
        )
        pace = _pace(communicator, size) if options.paced else None
        measurement = measure(communicator, request, pace)
        results.append(measurement.to_json())
        if first:
            print(report.row(measurement), flush=True)
    wrong = sum(entry["wrong"] or 0 for entry in results)
    if first:
        if options.check:
            print(f"# wrong elements: {wrong} {'OK' if wrong == 0 else 'FAILED'}", flush=True)
        if options.json:
            try:
                _write_json(options, communicator, results)
            except ConfigurationError as error:
                return _refused(error)
    return 1 if wrong else 0


def _refused(error: HerringError) -> int:
    print(f"herring.bench: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return 3


def _require_writable(communicator: Communicator, path: str | None) -> None:
    """Raises ConfigurationError on all ranks if rank 0 cannot write the file of --json.

    Ranks may have different options, so all of them ask rank 0.
    """
    refusal: ConfigurationError | None = None
    if communicator.rank == 0 and path is not None:
        try:
            require_writable(path, "--json")
        except ConfigurationError as error:
            refusal = error
    if communicator.gather(np.array([float(refusal is not None)]))[0, 0]:
        where = "--json" if path is None else f"--json {path}"
        raise refusal or ConfigurationError(
            f"{where}: rank 0 cannot write the file; its own error says why"
        )


def _pace(communicator: Communicator, size: int) -> Callable[[int], None]:
    def wait(batch: int) -> None:
        # The other ranks wait for rank 0 in the next barrier.
        if communicator.rank == 0:
            print(f"# ready: {size} bytes, batch {batch}", flush=True)
            if not sys.stdin.readline():
                raise SystemExit("--paced: standard input ended before the last batch")

    return wait


def _write_json(
    options: argparse.Namespace, communicator: Communicator, results: list[dict[str, Any]]
) -> None:
    document = {
        "benchmark": options.operation,
        "library": communicator.name,
        "workers": communicator.size,
        "nodes": communicator.num_nodes,
        "local_size": communicator.local_size,
        "warmup": options.warmup,
        "iterations": options.iterations,
        "batches": options.batches,
        "details": communicator.describe(),
        "results": results,
    }
    write_results(options.json, document, options)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m herring.bench", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="operation", required=True, metavar="OPERATION")
    allreduce = commands.add_parser(
        "allreduce",
        help="average an array over all workers in place, or reduce it with another --op",
        description=_ALLREDUCE,
        epilog=_EPILOG,
    )
    planned = commands.add_parser(
        "planned",
        help="average gradients through a plan with fusion buffers, as training does",
        description=_PLANNED,
    )
    variables = commands.add_parser(
        "variables",
        help="average gradients one by one, with one operation for each",
        description=_VARIABLES,
    )
    _add_common(allreduce)
    for command in (planned, variables):
        _add_common(command)
        command.set_defaults(array=None, peer="herring", algorithm=None)
        command.add_argument(
            "--gradients",
            type=_whole(1),
            default=50,
            metavar="N",
            help="divide the bytes into N gradients of uneven size (default: 50)",
        )
    planned.add_argument(
        "--wire-dtype",
        choices=("float16", "bfloat16", *PACKED_DTYPES),
        metavar="DTYPE",
        help="dtype in which gradients travel between nodes (default: their own), such as "
        "bfloat16, fp8, fp8/bfloat16 or topk:0.01; its rounding excludes --check",
    )
    allreduce.add_argument(
        "--array",
        choices=("herring", "numpy"),
        help="for arrays in host memory, allocate with herring.empty, whose memory local ranks "
        "share, or with numpy (default: herring)",
    )
    allreduce.add_argument(
        "--peer",
        choices=("herring", *PEERS),
        default="herring",
        help="measure another library with the same loop; gloo and nccl need torch, mpich and "
        "openmpi need mpi4py and their own launcher, horovod needs Horovod with torch (default: "
        "herring)",
    )
    allreduce.add_argument(
        "--algorithm",
        choices=sorted(
            {*models.ALGORITHMS, *(name for peer in PEERS for name in ALGORITHMS[peer])}
        ),
        help="Herring's algorithm: herring (the default) sums on servers; server, tree, ring, "
        "butterfly and doubling run between the workers. With --peer, an algorithm of that "
        "library, which chooses one itself by default",
    )
    options = parser.parse_args(argv)
    known = models.ALGORITHMS if options.peer == "herring" else ALGORITHMS[options.peer]
    if options.algorithm is not None and options.algorithm not in known:
        has = ", ".join(known) or "no algorithms to select: it chooses one itself"
        allreduce.error(f"--algorithm {options.algorithm}: {options.peer} has {has}")
    chosen = commands.choices[options.operation]
    if options.peer == "nccl" and options.device == "cpu":
        chosen.error("--device cpu: NCCL takes arrays on GPUs only; leave --device out")
    options.device = options.device or ("cuda" if options.peer == "nccl" else "cpu")
    if options.device == "cuda" and options.peer not in ("herring", *OF_TORCH):
        takers = ", ".join(("herring", *OF_TORCH))
        chosen.error(f"--device cuda: {options.peer} takes arrays in host memory; use {takers}")
    if options.device == "cuda" and options.array is not None:
        chosen.error(f"--array {options.array}: with --device cuda PyTorch holds the arrays")
    try:
        options.sizes = sizes.parse_sizes(options.sizes)
    except ConfigurationError as error:
        chosen.error(f"--sizes: {error}")
    if options.op == "average" and options.dtype not in pattern.FLOATS:
        chosen.error(f"{options.dtype} has no average: choose another --op, such as sum")
    return options


def _add_common(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--sizes",
        default="4K,1M,25M,100M",
        metavar="LIST",
        help="comma-separated array sizes in bytes; K, M and G are decimal, Ki, Mi and Gi binary "
        "(default: %(default)s)",
    )
    add("--warmup", type=_whole(0), default=3, metavar="N", help="untimed iterations (default: 3)")
    add(
        "--iterations",
        type=_whole(1),
        default=10,
        metavar="N",
        help="timed iterations (default: 10)",
    )
    add(
        "--dtype", choices=pattern.DTYPES, default="float32", help="element type (default: float32)"
    )
    add("--op", choices=pattern.OPS, default="average", help="reduction (default: average)")
    add(
        "--device",
        choices=("cpu", "cuda"),
        help="cpu: arrays in host memory. cuda: arrays on GPUs, allocated by PyTorch; rank r uses "
        "GPU r modulo the number of GPUs, and a time includes all work that the operation queued "
        "there (default: cpu, with --peer nccl cuda)",
    )
    add(
        "--check",
        action="store_true",
        help="compare the first and the last result of each size with the exact result, and count "
        "wrong elements over all ranks; the exit status is 1 if any element is wrong",
    )
    add("--json", metavar="FILE", help="write all results to FILE on rank 0")
    add(
        "--batches",
        type=_whole(1),
        default=1,
        metavar="N",
        help="repeat warm-up and timed iterations N times (default: 1)",
    )
    add(
        "--paced",
        action="store_true",
        help="before each batch, print '# ready' and wait for a line on rank 0's standard input, "
        "so that another program can alternate between two benchmarks",
    )


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = integer(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return parse
