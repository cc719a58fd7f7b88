"""Runs the cases of one framework as a single job, for tests that each check one case."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
LAYOUTS = {"one-node": ["-n", "2"], "two-nodes": ["-n", "2", "--nodes", "2", "--servers", "1"]}
# For partial rounds, of which a majority of two ranks is one.
THREE = {"three-nodes": ["-n", "3", "--nodes", "3"]}


@functools.cache
def jobs() -> ModuleType:
    """Returns the module tests/support/jobs.py."""
    spec = importlib.util.spec_from_file_location("jobs", HERE.parent / "support" / "jobs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(script: str) -> list[str]:
    """Returns the names of the cases in a script, without importing the script's framework."""
    return re.findall(r"^def test_(\w+)", (HERE / script).read_text(), re.MULTILINE)


@functools.cache
def run(
    script: str,
    layout: str,
    cases: tuple[str, ...] = (),
    backend: str = "",
    timeout: float = 1200,
    **environment: str,
) -> tuple[list[str], int, str]:
    """Runs cases (all by default) on every rank; returns those that passed, exit status, output."""
    code = f"""
        import runpy
        sys.argv = [{script!r}, *{list(cases)!r}]
        sys.path.insert(0, {str(HERE)!r})
        runpy.run_path({str(HERE / script)!r}, run_name="__main__")
    """
    with tempfile.TemporaryDirectory() as scratch:
        job = jobs().run_job(
            {**LAYOUTS, **THREE}[layout],
            code,
            timeout=timeout,
            SCRATCH=scratch,
            TF_CPP_MIN_LOG_LEVEL="3",
            **({"KERAS_BACKEND": backend} if backend else {}),
            **environment,
        )
    return re.findall(r"passed (\w+)", job.stdout), job.returncode, job.stdout


def check(
    script: str,
    layout: str,
    case: str,
    backend: str = "",
    cases: tuple[str, ...] = (),
    **environment: str,
) -> None:
    """Fails unless a case passes; all cases run as one job, which saves most of the time.

    Args:
      script: file name of the script with the cases.
      layout: name of the job's layout.
      case: the case to check.
      backend: backend of Keras, if any.
      cases: the script's cases to run in this layout; all by default.
      environment: additional environment variables of the job.
    """
    passed, status, output = run(script, layout, cases, backend, **environment)
    if case not in passed and len(passed) < [*(cases or listed(script))].index(case):
        # An earlier case failed, so run this one alone.
        passed, status, output = run(script, layout, (case,), backend, **environment)
    if case not in passed:
        pytest.fail(f"exit status {status}\n{output[-6000:]}", pytrace=False)


def check_example(
    name: str, arguments: Sequence[str], text: str, backend: str = "", nodes: int = 2
) -> str:
    """Runs an example, with one rank per node; returns its output, which must contain `text`."""
    path = HERE.parents[1] / "examples" / name
    code = f"""
        import runpy
        sys.argv = [{str(path)!r}, *{list(arguments)!r}]
        runpy.run_path({str(path)!r}, run_name="__main__")
    """
    environment = {"KERAS_BACKEND": backend} if backend else {}
    job = jobs().run_job(
        ["-n", str(nodes), "--nodes", str(nodes)],
        code,
        timeout=1200,
        TF_CPP_MIN_LOG_LEVEL="3",
        **environment,
    )
    output = jobs().expect_success(job)
    assert text in output, output[-4000:]
    return output


def check_script(name: str, text: str, **environment: str) -> str:
    """Runs a script that only knows Horovod; returns its output, which must contain `text`."""
    path = HERE / "scripts" / name
    command = [*(sys.executable, "-m", "herring.command.cli"), "run", "-np", "2", "--horovod"]
    done = subprocess.run(
        [*command, "--timeout", "1200", "--", sys.executable, str(path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert text in done.stdout, done.stdout[-4000:]
    return done.stdout


def check_losses(name: str, text: str) -> None:
    """Fails unless an example's losses equal those of a single process on whole batches."""
    together, alone = (
        [float(loss) for loss in re.findall(r"loss (\S+)", check_example(name, [], text, nodes=n))]
        for n in (2, 1)
    )
    assert len(together) == 3 and together[0] == pytest.approx(alone[0], rel=0.02), (
        together,
        alone,
    )


def without(package: str, module: str) -> str:
    """Returns the error output of importing `module` if `package` is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; import herring; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ},
    )
    assert done.returncode == 1
    return done.stderr


def example(name: str, *options: str, timeout: float = 1200) -> dict[str, Any]:
    """Runs a script of examples/; returns the JSON in its last line of output."""
    done = subprocess.run(
        [sys.executable, str(HERE.parents[1] / "examples" / name), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])
