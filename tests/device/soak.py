"""Runs many jobs on the stand-in for CUDA's driver; a seed chooses each layout and jitter.

    python tests/device/soak.py --runs 1000 --first 1

Each run is a job of one of `PROGRAMS`, which lie in `tests/python/programs`. The first job that
fails or hangs ends the program.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from gpus import ENVIRONMENT
from jobs import program, run_job

PROGRAMS = (
    "gpu_collectives",
    "gpu_rounds",
    "gpu_stages",
    "gpu_casts",
    "butterfly_bits",
    "butterfly_many",
)


def layout_of(choice: random.Random) -> list[str]:
    """Returns options of `herring run` for 2 to 8 workers."""
    size = choice.randint(2, 8)
    nodes = choice.randint(1, min(size, 4))
    servers = choice.choice((0, 0, 1, 2)) if nodes > 1 else 0
    return ["-n", str(size), "--nodes", str(nodes), "--servers", str(servers)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="how many jobs")
    parser.add_argument("--first", type=int, default=1, help="the first one's seed")
    options = parser.parse_args()
    start = time.monotonic()
    for seed in range(options.first, options.first + options.runs):
        choice = random.Random(seed)
        layout, jitter = layout_of(choice), choice.choice((0, 50, 300, 2000))
        what = choice.choice(PROGRAMS)
        settings = {
            "JITTER": str(jitter),
            "HERRING_NODE_STAGE": choice.choice(("auto", "host", "staged")),
            "GPUS": choice.choice("12"),
        }
        job = run_job(layout, program(what), timeout=120, **settings, **ENVIRONMENT)
        if job.returncode != 0:
            print(f"seed {seed} ({what}, {' '.join(layout)}, {settings}): {job.stdout}")
            return 1
        if (seed - options.first + 1) % 20 == 0:
            print(f"seed {seed}: right ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{options.runs} jobs: all right, in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
