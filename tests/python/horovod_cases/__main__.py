"""Runs cases one after the other; rank 0 records which have passed."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import herring.horovod.torch as hvd

from . import CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=list(CASES))
    parser.add_argument("--report", type=Path, default=Path("/dev/null"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    for name in arguments.cases:
        CASES[name]()
        hvd.barrier()
        if hvd.rank() == 0:
            with arguments.report.open("a") as report:
                report.write(f"{name}\n")
    hvd.shutdown()


main()
