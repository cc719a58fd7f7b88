"""The command line of ``python -m herring.bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from herring import models
from herring.bench import pattern, report, sizes
from herring.bench.communicator import Communicator, HerringCommunicator
from herring.bench.gpus import Gpus
from herring.bench.libraries import ALGORITHMS, OF_TORCH, PEERS
from herring.bench.measure import Request, measure
from herring.command_line import Parser, guarded, integer
from herring.errors import ConfigurationError, HerringError
from herring.parts import missing_part
from herring.provenance import write_results

_DESCRIPTION = """\
Measures how long operations take. Start it like any training script, once per worker:

  herring run -n 4 -- python -m herring.bench allreduce          one machine
  torchrun --nproc-per-node 4 -m herring.bench allreduce         the same under torchrun
  mpirun -n 4 python -m herring.bench allreduce                  ... or mpirun, or srun
  HERRING_RENDEZVOUS=10.0.0.1:29400 HERRING_RANK=0 ... python -m herring.bench allreduce
"""

_ALLREDUCE = """\
Times an all-reduce for each size and prints a table at rank 0.

Each iteration is a barrier and then the operation; its time is that of the slowest rank. The
statistics are over iterations: with fewer than 100 of them p99 is the largest. algbw is the size
divided by the median. Over n equal links of B bytes/s, as many dedicated servers as nodes reach
algbw = B; a ring cannot exceed B * n / (2 (n - 1)).
"""

_PLANNED = """\
Times a round of planned gradients, the operation that training uses: all gradients become ready in
order, fusion buffers are pushed as they fill, and the round ends when the last one is averaged.
Times, statistics and table are those of the allreduce benchmark.
"""

_VARIABLES = """\
Times all-reduces of gradients as operations of their own: all are started, then all waited for. A
gradient of up to HERRING_SMALL_BYTES stays whole on one server, as a classic parameter server has
it; larger ones are divided over all servers. To compare with planned, which takes the same sizes.
"""

_EPILOG = """\
examples:
  # does it add up, and how fast is it, over two emulated nodes with two servers?
  herring run -n 4 --nodes 2 --servers 2 -- python -m herring.bench allreduce --check
  # the same loop over Gloo, for comparison
  herring run -n 4 -- python -m herring.bench allreduce --peer gloo --op sum
  # a ring between the workers, beside what the servers do
  herring run -n 4 --nodes 4 -- python -m herring.bench allreduce --algorithm ring
  # MPI, with its own launcher and an algorithm of its own
  mpiexec -n 4 python -m herring.bench allreduce --peer openmpi --algorithm ring --op sum
  # arrays on GPUs; the same by NCCL, which needs a GPU for each worker
  herring run -n 2 -- python -m herring.bench allreduce --device cuda --check
  herring run -n 2 -- python -m herring.bench allreduce --peer nccl --op sum
  # keep the numbers
  herring run -n 2 -- python -m herring.bench allreduce --sizes 1M,100M --json allreduce.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
      The exit status: 0; 1 if an element came out wrong; 3 if Herring reported an error.
    """
    return guarded(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    options = _parse(argv)
    try:
        communicator = _open(options)
        status = _run(communicator, options)
        # Only at a good end: to leave is collective, and after an error others may be gone.
        communicator.close()
    except HerringError as error:
        print(f"herring.bench: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 3
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
    return HerringCommunicator(shared, options.algorithm or "herring", gpus)


def _run(communicator: Communicator, options: argparse.Namespace) -> int:
    first = communicator.rank == 0
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
            _write_json(options, communicator, results)
    return 1 if wrong else 0


def _pace(communicator: Communicator, size: int) -> Callable[[int], None]:
    def wait(batch: int) -> None:
        # The others wait for rank 0 in the barrier that follows.
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
        help="average or otherwise reduce an array over all workers, in place",
        description=_ALLREDUCE,
        epilog=_EPILOG,
    )
    planned = commands.add_parser(
        "planned",
        help="average gradients through a plan: fusion buffers, as in training",
        description=_PLANNED,
    )
    variables = commands.add_parser(
        "variables",
        help="average gradients one by one, an operation for each",
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
            help="into how many uneven gradients the bytes are divided (default: 50)",
        )
    allreduce.add_argument(
        "--array",
        choices=("herring", "numpy"),
        help="of arrays in host memory: from herring.empty, which local ranks share, or any other "
        "(default: herring)",
    )
    allreduce.add_argument(
        "--peer",
        choices=("herring", *PEERS),
        default="herring",
        help="measure another library with the same loop: gloo and nccl need torch, mpich and "
        "openmpi need mpi4py and their launcher",
    )
    allreduce.add_argument(
        "--algorithm",
        choices=sorted(
            {*models.ALGORITHMS, *(name for peer in PEERS for name in ALGORITHMS[peer])}
        ),
        help="of Herring: herring (through servers; the default) or between the workers: server, "
        "tree, ring, butterfly. Of a peer: by default its own choice, else one that it has",
    )
    options = parser.parse_args(argv)
    known = models.ALGORITHMS if options.peer == "herring" else ALGORITHMS[options.peer]
    if options.algorithm is not None and options.algorithm not in known:
        has = ", ".join(known) or "none to choose: it chooses its own"
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
        help="bytes of the array, comma-separated; K, M, G are decimal, Ki, Mi, Gi binary "
        "(default: %(default)s)",
    )
    add("--warmup", type=_whole(0), default=3, metavar="N", help="untimed iterations (default: 3)")
    add("--iterations", type=_whole(1), default=10, metavar="N", help="timed (default: 10)")
    add("--dtype", choices=pattern.DTYPES, default="float32", help="default: float32")
    add("--op", choices=pattern.OPS, default="average", help="default: average")
    add(
        "--device",
        choices=("cpu", "cuda"),
        help="where arrays lie: in host memory, or on GPUs, where PyTorch holds them: rank r works "
        "on number r modulo how many there are, and a time includes all that was queued there "
        "(default: cpu; with --peer nccl cuda)",
    )
    add(
        "--check",
        action="store_true",
        help="compare the first and the last result of each size with the exact one and count "
        "wrong elements over all ranks; the exit status is 1 if there are any",
    )
    add("--json", metavar="FILE", help="write all results there (at rank 0)")
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
        help="before each batch say '# ready' and wait for a line on rank 0's standard input: "
        "lets another program interleave two benchmarks",
    )


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = integer(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return parse
