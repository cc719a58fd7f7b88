"""Runs cases one after the other; rank 0 records which have passed."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import herring.torch as herring

from . import CASES, GROUP_CASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cases = CASES | GROUP_CASES
    parser.add_argument("cases", nargs="+", choices=list(cases))
    parser.add_argument("--report", type=Path, default=Path("/dev/null"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    herring.init()
    for name in arguments.cases:
        cases[name]()
        herring.barrier()
        if herring.rank() == 0:
            with arguments.report.open("a") as report:
                report.write(f"{name}\n")
    herring.shutdown()


main()
