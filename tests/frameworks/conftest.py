"""Sets up tests of framework adapters; `make test-frameworks` has an environment for each."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]  # for cases.py and jobs.py
