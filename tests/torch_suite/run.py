"""Runs tests of torch and of other projects on Herring in place of Gloo, and lists what fails.

Usage: python tests/torch_suite/run.py [--ranks 4] [--only TEXT] [--backend herring] [--compare]
       [--checkout FOLDER [--cpu] TEST...]

Without --checkout, these are torch's own tests of a backend, which come with torch, in
torch.testing._internal.distributed. Else they are files or folders of tests in a checkout: of
PyTorch itself, such as test/distributed/checkpoint, or of a project that uses torch.distributed.
The packages expecttest and pytest-timeout are needed, and what the tests need themselves.

Many tests run only if the backend is called gloo. So the tests ask for that, and each group that
they make with gloo, or with torch's default, is made with --backend instead, in each process that
they start. `--backend gloo` shows what passes without Herring. --compare runs the tests on Gloo and
then on --backend, and lists those that pass on Gloo only. The status is that of pytest, or 1 if
--compare lists a test.

Tests for GPUs run on processors with --cpu (without_gpus.py), if the checkout says so, too:
sed -i 's/"cuda"/"cpu"/g; s/"nccl"/"gloo"/g' in its tests.

Three of torch's tests fail on Herring: test_get_backend asks for the name, and
test_monitored_barrier_gloo and test_monitored_barrier_gloo_rank_0_timeout for Gloo's words on ranks
that have waited for others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

LIMIT = 90  # seconds that a test may take
# Workers are forked: torch's tests start processes anew, which takes seconds for each test.
TESTS = """\
from torch.multiprocessing import get_context
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestBackend(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(get_context("fork").Process)
"""
# Python runs this in each process before anything else.
SITE = """\
import functools
import os

from torch.distributed import distributed_c10d

make = distributed_c10d._new_process_group_helper


@functools.wraps(make)
def make_instead(size, rank, ranks, backend, *arguments, **options):
    parts = (part.rpartition(":") for part in str(backend).split(","))
    instead = {"gloo": os.environ["INSTEAD"], "undefined": "cpu:" + os.environ["INSTEAD"]}
    chosen = ",".join(device + colon + instead.get(name, name) for device, colon, name in parts)
    return make(size, rank, ranks, chosen, *arguments, **options)


distributed_c10d._new_process_group_helper = make_instead
"""


def run(options: argparse.Namespace, backend: str, report: Path) -> int:
    """Runs the tests, writes pytest's report, and returns pytest's status."""
    with tempfile.TemporaryDirectory(prefix="herring-torch-") as name:
        folder = Path(name)
        (folder / "test_backend.py").write_text(TESTS, encoding="utf-8")
        for needed in "barrier", "test_dir", "init_dir", "site":
            (folder / needed).mkdir()
        (folder / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        paths = [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "BACKEND": "gloo",
            "INSTEAD": backend,
            "WORLD_SIZE": str(options.ranks),
            "TEMP_DIR": name,
            "INIT_METHOD": f"file://{folder / 'shared_init_file'}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        if options.cpu:
            tests = [options.checkout.resolve() / test for test in options.tests]
            beside = [test if test.is_dir() else test.parent for test in tests]  # what they import
            paths += map(str, [Path(__file__).parent.resolve(), *beside])
            environment |= {"PYTHONPATH": os.pathsep.join(paths), "LIMIT": str(LIMIT)}
        if options.checkout:  # its tests begin groups with variables of their own
            del environment["WORLD_SIZE"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["--timeout", str(LIMIT), "--tb=short", "--disable-warnings"]
        command += ["--junitxml", str(report), *(options.tests or ["test_backend.py"])]
        command += ["-k", options.only] if options.only else []
        command += ["-p", "without_gpus", "--continue-on-collection-errors"] if options.cpu else []
        where = options.checkout or folder
        return subprocess.run(command, cwd=where, env=environment, check=False).returncode


def passed(report: Path) -> set[str]:
    """Returns the tests that have passed according to a report of pytest."""
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}" for case in cases if not len(case)}


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Prints the tests that pass on Gloo only, and returns 1 if there are any."""
    found = []
    for backend in ("gloo", options.backend):
        run(options, backend, folder / backend)
        found.append(passed(folder / backend))
    lost = sorted(found[0] - found[1])
    for test in lost:
        print(f"fails on {options.backend} only: {test}")
    print(f"{len(lost)} of {len(found[0])} tests that pass on gloo fail on {options.backend}")
    return int(bool(lost))


def main(words: Sequence[str] | None = None) -> int:
    """Runs the tests, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs tests of torch.distributed on Herring.")
    parser.add_argument("tests", nargs="*", help="files or folders of tests in the checkout")
    parser.add_argument("--checkout", type=Path, help="of PyTorch, or of a project that uses it")
    parser.add_argument("--cpu", action="store_true", help="run its tests for GPUs on processors")
    parser.add_argument("--ranks", type=int, default=4, help="of torch's tests of a backend (4)")
    parser.add_argument("--only", default="", help="tests whose names contain a text (pytest's -k)")
    parser.add_argument("--backend", default="herring", help="what takes Gloo's place (herring)")
    parser.add_argument("--compare", action="store_true", help="list what passes on Gloo only")
    options = parser.parse_args(words)
    if bool(options.tests) != bool(options.checkout):
        parser.error("--checkout needs tests, and tests need --checkout")
    with tempfile.TemporaryDirectory(prefix="herring-torch-") as name:
        if options.compare:
            return compare(options, Path(name))
        return run(options, options.backend, Path(name) / "report")


if __name__ == "__main__":
    sys.exit(main())
