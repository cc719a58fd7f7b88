"""Tests of adapters that need a framework: `make test-frameworks` has an environment for each."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))  # jobs.py
