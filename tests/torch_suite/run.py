"""Runs torch's own tests of a backend on Herring, and lists which of them fail.

Usage: python tests/torch_suite/run.py [--ranks 4] [--only TEXT] [--backend herring]

The tests come with torch, in torch.testing._internal.distributed, and need the packages expecttest
and pytest-timeout. Many of them run only if the backend is called gloo. So the tests hear that it
is, and each group that they make with gloo is made with --backend instead. `--backend gloo` shows
what passes without Herring. The status is that of pytest.

Three tests fail on Herring: test_get_backend asks for the name, and test_monitored_barrier_gloo and
test_monitored_barrier_gloo_rank_0_timeout for Gloo's words on ranks that have waited for others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 90  # seconds that a test may take
# Workers are forked: torch's tests start processes anew, which takes seconds for each test.
TESTS = """\
import functools
import os

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.multiprocessing import get_context
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


def swapped(function, place):
    @functools.wraps(function)
    def call(*arguments, **options):
        given = list(arguments)
        if given[place:] and given[place] == "gloo":
            given[place] = os.environ["INSTEAD"]
        if options.get("backend") == "gloo":
            options["backend"] = os.environ["INSTEAD"]
        return function(*given, **options)

    return call


for name, place in ("init_process_group", 0), ("new_group", 2):
    function = swapped(getattr(distributed_c10d, name), place)
    setattr(distributed_c10d, name, function)
    setattr(dist, name, function)


class TestBackend(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(get_context("fork").Process)
"""


def main() -> int:
    """Runs the tests, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs torch's own tests of a backend on Herring.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="", help="tests whose names contain a text (pytest's -k)")
    parser.add_argument("--backend", default="herring", help="what takes Gloo's place (herring)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="herring-torch-") as name:
        folder = Path(name)
        (folder / "test_backend.py").write_text(TESTS, encoding="utf-8")
        for needed in "barrier", "test_dir", "init_dir":
            (folder / needed).mkdir()
        environment = {
            **os.environ,
            "BACKEND": "gloo",
            "INSTEAD": options.backend,
            "WORLD_SIZE": str(options.ranks),
            "TEMP_DIR": name,
            "INIT_METHOD": f"file://{folder / 'shared_init_file'}",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["--timeout", str(LIMIT), "--tb=short", "--disable-warnings", "test_backend.py"]
        command += ["-k", options.only] if options.only else []
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
