"""Checks on random networks whether self-controlled credit reaches the best fixed window's goodput.

``python -m herring_lab.simulate.property_suite --networks 1000`` (or ``make credit-suite``) draws
networks. It runs the real controller on each, searches the best fixed window, and ends with status
1 if a property does not hold. A network depends on its number only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from herring_lab.simulate import coarse_networks, job_networks
from herring_lab.simulate.verdict import ALL, MOST, Verdict, breaches

#: The function that measures a network, by value of ``--model``.
MODELS: dict[str, Callable[[int], Verdict]] = {
    "coarse": coarse_networks.measure,
    "jobs": job_networks.measure,
}


def _table(verdicts: Sequence[Verdict], count: int) -> str:
    worst = sorted(verdicts, key=lambda verdict: verdict.share)[:count]
    lines = [f"{'network':>8} {'share':>6} {'window':>7} {'best':>5}"]
    for v in worst:
        more = f"  {v.bound}" + ("  COLLAPSED" if v.collapsed else "")
        lines.append(f"{v.seed:>8} {v.share:>6.2f} {v.window:>7} {v.best_window:>5}{more}".rstrip())
        lines.append(f"         {v.network}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suite; returns 1 if a property does not hold, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python -m herring_lab.simulate.property_suite",
        description=(
            "Runs the credit controller on random networks, and compares its goodput with that of "
            "the best fixed window."
        ),
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="coarse",
        help="coarse model (default) or whole jobs in virtual time, which are 60 times slower and "
        "have 2 to 16 nodes",
    )
    parser.add_argument(
        "--networks", type=int, default=1000, help="number of networks (default 1000)"
    )
    parser.add_argument(
        "--first", type=int, default=1, help="seed of the first network (default 1)"
    )
    parser.add_argument("--parallel", type=int, default=1, help="number of threads (default 1)")
    parser.add_argument(
        "--worst", type=int, default=10, help="number of networks in the table (default 10)"
    )
    options = parser.parse_args(arguments)
    for name, least in (("networks", 1), ("first", 0), ("parallel", 1), ("worst", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: give {least} or more")
    seeds = range(options.first, options.first + options.networks)
    began = time.monotonic()
    verdicts = _measure_all(MODELS[options.model], seeds, options.parallel)
    print(_table(verdicts, options.worst))
    good = sum(v.share >= MOST for v in verdicts)
    fair = sum(v.share >= ALL for v in verdicts)
    print(
        f"{len(verdicts)} networks in {time.monotonic() - began:.0f} s: {good} reach {MOST:.0%} of "
        f"the best fixed window's goodput, {fair} reach {ALL:.0%}, "
        f"{sum(v.collapsed for v in verdicts)} collapse"
    )
    found = breaches(verdicts)
    for breach in found:
        print(f"property does not hold: {breach}")
    return int(bool(found))


def _measure_all(
    measure: Callable[[int], Verdict], seeds: Sequence[int], threads: int
) -> list[Verdict]:
    """Returns the verdict of each network, and prints progress on standard error."""
    verdicts: list[Verdict] = []
    began = shown = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for verdict in pool.map(measure, seeds):
                verdicts.append(verdict)
                now = time.monotonic()
                if now - shown >= 2:
                    shown = now
                    left = (now - began) / len(verdicts) * (len(seeds) - len(verdicts))
                    good = sum(v.share >= MOST for v in verdicts)
                    print(
                        f"{len(verdicts)} of {len(seeds)} networks, {good} at {MOST:.0%} or more, "
                        f"{left:.0f} s left",
                        file=sys.stderr,
                        flush=True,
                    )
        except BaseException:  # do not start the networks that wait
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
