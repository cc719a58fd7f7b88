"""Runs cases one after the other; rank 0 records which have passed."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

import herring.torch  # registers the backend

from . import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--init", default="env://")
    parser.add_argument("--report", type=Path, default=Path("/dev/null"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("herring", init_method=arguments.init)
    assert isinstance(dist.group.WORLD, herring.torch.backend.HerringProcessGroup)
    for name in arguments.cases or CASES:
        begin = time.perf_counter()
        CASES[name]()
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{name}: {time.perf_counter() - begin:.2f} s", flush=True)
            with arguments.report.open("a") as report:
                report.write(f"{name}\n")
    dist.destroy_process_group()


main()
