"""Compares groups with jobs of the same size, and measures how two groups share links.

  python benchmarks/groups.py            all of them: 8 + 8 emulated hosts, 200 Mbit/s (needs root)
  python benchmarks/groups.py --json groups.json --rounds 20

Each line of the output is a ratio and the seconds behind it. The ratios compare a group of 2 of 8
workers with a job of 2 workers and the same servers; a group of all ranks with no group, in turns;
and two groups of 4 of 8 workers, which run at the same time, with the limit of the links.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

from herring.base.provenance import write_results

WORKERS = SERVERS = 8
MEGABITS = 200.0
BYTES = 12_500_000


def measure(array: Any, rounds: int, group: Any, members: int, barrier: Any) -> list[float]:
    """Returns the seconds that each all-reduce of `array` took on the group's slowest rank."""
    import numpy as np

    import herring

    seconds = []
    for number in range(rounds):
        array[:] = 1
        barrier()
        start = time.perf_counter()
        herring.allreduce(array, "sum", group=group)
        own = np.array([time.perf_counter() - start])
        herring.allreduce(own, "max", group=group)
        if not (array == members).all():
            raise SystemExit(f"round {number}: wrong elements")
        seconds.append(float(own[0]))
    return seconds


def work(options: argparse.Namespace) -> None:
    """Runs the measurement `options.what` as one worker; rank 0 writes the file."""
    import numpy as np

    import herring

    herring.init()
    rank, size = herring.rank(), herring.size()
    array = np.ones(BYTES // 4, np.float32)
    warm, rounds = 8, options.rounds
    found: dict[str, list[float]] = {}
    if options.what == "pair-alone":
        measure(array, warm, None, size, herring.barrier)
        found["pair-alone"] = measure(array, rounds, None, size, herring.barrier)
    elif options.what == "pair-in-eight":
        pair = herring.new_group([0, 1])
        if pair.rank is not None:
            barrier = lambda: herring.barrier(group=pair)  # noqa: E731
            measure(array, warm, pair, 2, barrier)
            found["pair-in-eight"] = measure(array, rounds, pair, 2, barrier)
    elif options.what == "world":
        world = herring.new_group(range(size))
        for _ in range(2):
            measure(array, warm, None, size, herring.barrier)
            measure(array, warm, world, size, herring.barrier)
        found = {"no group": [], "all in a group": []}
        for _ in range(rounds):
            found["no group"] += measure(array, 1, None, size, herring.barrier)
            found["all in a group"] += measure(array, 1, world, size, herring.barrier)
    else:
        halves = [herring.new_group(range(size // 2)), herring.new_group(range(size // 2, size))]
        mine = halves[0] if halves[0].rank is not None else halves[1]
        barrier = lambda: herring.barrier(group=mine)  # noqa: E731
        measure(array, warm, mine, mine.size, barrier)
        herring.barrier()
        own = measure(array, rounds, mine, mine.size, barrier)
        both = herring.allgather(np.array([own]))
        found = {"first four": list(both[0]), "second four": list(both[-1])}
    if rank == 0:
        pathlib.Path(options.result).write_text(json.dumps(found))
    herring.barrier()


def run(what: str, workers: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Runs a job on new emulated hosts, and returns its seconds by name."""
    from herring_lab.emulate import Cluster
    from herring_lab.emulate.runner import Plan
    from herring_lab.emulate.runner import run as run_plan

    with tempfile.TemporaryDirectory(prefix="herring-groups-") as directory:
        result = os.path.join(directory, "seconds.json")
        command = [sys.executable, __file__, "--what", what, "--result", result]
        command += ["--rounds", str(options.rounds)]
        plan = Plan(command, workers, SERVERS, timeout=300)
        with Cluster(plan.hosts, MEGABITS * 1e6, 0.020) as cluster:
            if run_plan(cluster, plan) != 0:
                raise SystemExit(f"{what}: the job failed")
        found = json.loads(pathlib.Path(result).read_text())
    return {str(name): list(seconds) for name, seconds in found.items()}


def main() -> int:
    """Runs the measurements, or runs as one worker of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds (default: 20)")
    parser.add_argument("--json", metavar="FILE", help="write all seconds to FILE")
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what:
        work(options)
        return 0
    seconds: dict[str, list[float]] = {}
    for what, workers in (
        ("pair-alone", 2),
        ("pair-in-eight", WORKERS),
        ("world", WORKERS),
        ("halves", WORKERS),
    ):
        seconds.update(run(what, workers, options))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    limit = BYTES * 8 / (MEGABITS * 1e6)
    for title, value, against, required in (
        ("2 of 8 / job of 2", median["pair-in-eight"], median["pair-alone"], 1.05),
        ("all in a group / no group", median["all in a group"], median["no group"], 1.02),
        ("first 4 of 8, both at once / limit", median["first four"], limit, 1.10),
        ("second 4 of 8, both at once / limit", median["second four"], limit, 1.10),
    ):
        ratio = value / against
        verdict = "PASS" if ratio <= required else "FAIL"
        print(
            f"{title:<38} {ratio:6.3f} <= {required:g} {verdict}  {value:.4f} s, {against:.4f} s",
            flush=True,
        )
    if options.json:
        write_results(options.json, {"seconds": seconds}, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
