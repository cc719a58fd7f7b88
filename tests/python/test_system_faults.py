"""System calls that fail: success or a typed error on every rank; `make faults` tries all cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build/tests/fault_injection.so"
CASES = ROOT / "tests/faults/cases.py"

pytestmark = pytest.mark.timeout(240)


def run_cases(*options: str) -> None:
    assert LIBRARY.exists(), f"first: make {LIBRARY.relative_to(ROOT)}"
    done = subprocess.run(
        [sys.executable, str(CASES), str(LIBRARY), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert " cases right" in done.stdout, done.stdout[-2000:]


def test_cases_of_all_kinds() -> None:
    run_cases("--sample", "120", "--parallel", "4")
