"""Tests of adapters that need a framework: `make test-frameworks` has an environment for each."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]  # cases.py, jobs.py
