"""If a system call fails, every rank succeeds or gets a typed error (`make faults`: all cases)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build/tests/fault_injection.so"
CASES = ROOT / "tests/faults/cases.py"


def run_cases(*options: str) -> None:
    assert LIBRARY.exists(), f"first: make {LIBRARY.relative_to(ROOT)}"
    done = subprocess.run(
        [sys.executable, str(CASES), str(LIBRARY), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"^[1-9]\d* of \d+ cases right", done.stdout, re.M), done.stdout[-2000:]


def test_cases_of_all_kinds() -> None:
    run_cases("--sample", "40", "--parallel", "4")


def test_both_ranks_learn_that_their_connection_has_ended_though_both_live() -> None:
    for error in ("EPIPE", "ECONNRESET"):
        run_cases("--case", f"node/leave/1/1/sendmsg/3/{error}/once")
