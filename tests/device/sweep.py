"""Lets each call of the driver fail in turn, in jobs on the stand-in for CUDA's driver.

    python tests/device/sweep.py --only rounds-ipc --modes lost --stride 5

A job runs for each call number, until no call fails any more. On rank 0 the call fails once, or it
and all later calls fail, or the GPU is lost at the call. Each rank must then go on with right
results or end with a typed error, in bounded time. A case that does not is printed with the command
that repeats it; the others run nevertheless.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from gpus import ENVIRONMENT, TORCH_ENVIRONMENT
from jobs import program, run_job

MODES = {"once": "719", "sticky": "719:sticky", "lost": "0:lost"}
SECONDS = 8.0  # from a failure to the end of the job: 2 s, and what a busy machine takes
LAYOUT = ["-n", "3", "--nodes", "2"]


def _jobs() -> dict[str, tuple[str, dict[str, str]]]:
    """Returns a program and its settings by the name of the job."""
    named = ("allreduces", "lists", "broadcasts", "butterfly", "casts")
    jobs = {calls: ("gpu_steps", {"CALLS": calls}) for calls in named}
    for stage in ("host", "staged", "ipc"):
        settings = {"CALLS": "rounds", "HERRING_NODE_STAGE": stage}
        jobs[f"rounds-{stage}"] = ("gpu_steps", settings)
    jobs["gathers"] = ("gpu_gathers", {})
    for calls in ("ddp", "all_gather", "reduce_scatter", "broadcast", "all_reduce"):
        jobs[f"backend-{calls}"] = ("backend_steps", {"CALLS": calls})
    return jobs


JOBS = _jobs()


def run(name: str, number: int, mode: str) -> tuple[bool, str, str]:
    """Runs a job in which a call fails.

    Returns:
      Whether a call has failed, what is wrong (empty: nothing), and the job's output.
    """
    script, settings = JOBS[name]
    environment = TORCH_ENVIRONMENT if script == "backend_steps" else ENVIRONMENT
    job = run_job(
        [*LAYOUT, "--keep-going"],
        program(script),
        timeout=60,
        grace=20,
        STANDIN_FAIL=f"*:{number}:{MODES[mode]}",
        STANDIN_FAIL_RANK="0",
        STANDIN_PEERS="1",
        JITTER="0",
        **environment,
        **settings,
    )
    ended = time.monotonic()
    failed = re.search(r"stand-in: \w+ fails at ([\d.]+) s", job.stdout)
    wrong = _fault(job.stdout, job.returncode, failed and failed[1], ended)
    return failed is not None, wrong, job.stdout


def _fault(said: str, status: int, failed: str | None, ended: float) -> str:
    """Returns what is wrong with a job, or an empty text."""
    for rank in re.findall(r"rank (\d+) \(process \d+\) (?:was killed|was ended|ended) by", said):
        return f"rank {rank} was ended by a signal"
    if "AssertionError" in said:
        return "a check of the program has failed"
    if status != 0 and "herring.errors." not in said:
        return f"status {status} without a typed error"
    if failed is None and status != 0:
        return "an error, although no call has failed"
    errors = re.search(r"herring\.errors\.|Error in step", said)
    if failed is not None and errors and ended - float(failed) > SECONDS:
        return f"the job ended {ended - float(failed):.1f} s after the failure"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"some of the jobs: {', '.join(JOBS)}")
    parser.add_argument("--modes", default=",".join(MODES), help="once, sticky, lost")
    parser.add_argument("--first", type=int, default=1, help="the first call")
    parser.add_argument("--stride", type=int, default=1, help="from one call to the next")
    parser.add_argument("--most", type=int, default=10_000, help="calls of each job and mode")
    options = parser.parse_args()
    start, faults = time.monotonic(), 0
    for name in options.only.split(",") if options.only else JOBS:
        for mode in options.modes.split(","):
            number, cases = options.first, 0
            while cases < options.most:
                failed, wrong, said = run(name, number, mode)
                if wrong:
                    faults += 1
                    command = (
                        f"{os.path.relpath(sys.executable)} tests/device/sweep.py --only {name} "
                        f"--modes {mode} --first {number} --most 1"
                    )
                    print(f"WRONG: {wrong}; repeat with: {command}\n{said}", flush=True)
                if not failed:
                    break
                cases += 1
                number += options.stride
            took = time.monotonic() - start
            print(f"{name}, {mode}: {cases} calls have failed ({took:.0f} s)", flush=True)
    print(f"{faults} cases are wrong" if faults else "all right")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
