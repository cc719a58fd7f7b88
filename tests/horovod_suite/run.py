"""Runs Horovod's own tests on Herring, and lists which of them fail.

Usage: python tests/horovod_suite/run.py [--file test_torch.py] [--nodes 2] [--apart] [--only TEXT]
[--muon] [--source GIT]

The tests are those of Horovod's release whose API Herring has; they are not part of this
repository. --source is a repository of Horovod's, at an address or in a folder. The whole file runs
in one process for each rank, as in Horovod's own CI. There a test that fails on one rank only may
take tests after it along; with --apart each test has a job of its own, which takes longer. A test
counts as passed if it has passed on all ranks, and does not count if it was skipped on all of them,
as tests for GPUs are. The status is 1 if a test has failed.

Three tests make every optimizer of torch for a model with biases. torch.optim.Muon, which is newer
than Horovod, refuses biases by itself, so these tests do not see it here; --muon lets them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import herring.horovod

SOURCE = "https://github.com/horovod/horovod"
RELEASE = f"v{herring.horovod.__version__}"
LIMIT = 1800  # seconds that a job may take
# The tests import the package mock, which is a part of Python today.
MOCK = """\
import sys
import unittest.mock

sys.modules["mock"] = unittest.mock
"""
# The tests choose among the subclasses of torch.optim.Optimizer by the names of their modules.
WITHOUT_MUON = """\
try:
    import torch
except ImportError:
    pass
else:
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "without_muon"
"""


def fetch(source: str, folder: Path) -> None:
    """Puts the folder `test` of Horovod's release into a folder."""
    if not Path(source).is_dir():
        clone = folder / "repository"
        command = ["git", "clone", "-q", "--depth", "1", "--branch", RELEASE, source, str(clone)]
        subprocess.run(command, check=True)
        source = str(clone)
    archive = folder / "test.tar"
    command = ["git", "-C", source, "archive", "--output", str(archive), RELEASE, "test"]
    subprocess.run(command, check=True)
    subprocess.run(["tar", "-x", "-f", str(archive), "-C", str(folder)], check=True)
    for name, text in ("mock", MOCK), ("without_muon", WITHOUT_MUON):
        (folder / "test" / "utils" / f"{name}.py").write_text(text, encoding="utf-8")


def run(folder: Path, ranks: int, nodes: int, arguments: list[str], output: int | None) -> str:
    """Runs pytest on all ranks of a job; each rank writes RANK.xml. Returns what it printed."""
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    # pytest expands variables in this option.
    tests += ["--junit-xml=$RANK.xml", *arguments]
    job = [sys.executable, "-m", "herring.command.cli", "run", "--horovod", "--keep-going"]
    job += ["--timeout", str(LIMIT), "-n", str(ranks), "--nodes", str(nodes), "--", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder / "utils")}
    for old in folder.glob("*.xml"):
        old.unlink()
    done = subprocess.run(job, cwd=folder, env=environment, stdout=output, text=True, check=False)
    return done.stdout or ""


def outcomes(folder: Path, ranks: int) -> dict[str, set[str]]:
    """Returns the outcomes of each test on all ranks, from their reports."""
    found: dict[str, set[str]] = {}
    for rank in range(ranks):
        report = folder / f"{rank}.xml"
        if not report.is_file():  # the rank has not come to the end
            return {one: {"failed"} for one in found}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            bad = kinds & {"failure", "error"}
            kind = "failed" if bad else "skipped" if "skipped" in kinds else "passed"
            found.setdefault(case.attrib["name"], set()).add(kind)
    return found


def main() -> int:
    """Runs a file of Horovod's tests, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs Horovod's own tests on Herring.")
    parser.add_argument("--file", default="test_torch.py", help="file of test/parallel")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="run each test in a job of its own")
    parser.add_argument("--only", default="", help="tests whose names contain a text (pytest's -k)")
    parser.add_argument("--muon", action="store_true", help="let tests make torch.optim.Muon, too")
    parser.add_argument("--source", default=SOURCE, help=f"repository of Horovod's ({SOURCE})")
    options = parser.parse_args()
    chosen = [f"parallel/{options.file}", *(["-k", options.only] if options.only else [])]
    plugins = [] if options.muon else ["-p", "without_muon"]
    with tempfile.TemporaryDirectory(prefix="herring-horovod-") as name:
        folder = Path(name) / "test"
        fetch(options.source, folder.parent)
        if options.apart:
            listed = run(folder, 1, 1, ["--collect-only", *plugins, *chosen], subprocess.PIPE)
            found: dict[str, set[str]] = {}
            for test in re.findall(r"(parallel/\S+::(\w+))$", listed, re.MULTILINE):
                run(folder, options.ranks, options.nodes, [*plugins, test[0]], subprocess.DEVNULL)
                found |= outcomes(folder, options.ranks) or {test[1]: {"failed"}}
        else:
            run(folder, options.ranks, options.nodes, [*plugins, *chosen], None)
            found = outcomes(folder, options.ranks)
    counted = {one: kinds for one, kinds in found.items() if kinds != {"skipped"}}
    failed = sorted(one for one, kinds in counted.items() if "failed" in kinds)
    print("\n".join(f"failed: {one}" for one in failed))
    print(f"{options.file}: {len(counted) - len(failed)} of {len(counted)} pass", flush=True)
    return int(bool(failed) or not counted)


if __name__ == "__main__":
    sys.exit(main())
