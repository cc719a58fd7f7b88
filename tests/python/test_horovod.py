"""herring.horovod in real jobs: every case of `horovod_cases`, and the ways to start scripts."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm

pytest.importorskip("torch")

from batches import herring_run, outcomes
from horovod_cases import CASES
from jobs import program, run_job

LAYOUTS = {"two-nodes": ["-n", "4", "--nodes", "2", "--servers", "1"], "one-node": ["-n", "3"]}
# Cases that depend on the node of a rank, or on whether the number of ranks is a power of two.
ON_ONE_NODE = ["every_dtype", "adasum", "joins"]


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    cases = list(CASES) if layout == "two-nodes" else ON_ONE_NODE
    command = [*herring_run(*LAYOUTS[layout]), "-m", "horovod_cases"]
    return outcomes(command, cases, OMP_NUM_THREADS="1")


@pytest.mark.parametrize(
    ("layout", "case"),
    [("two-nodes", case) for case in CASES] + [("one-node", case) for case in ON_ONE_NODE],
)
def test_case(layout: str, case: str) -> None:
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)


def test_unchanged_script_and_options(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    example = Path(__file__).resolve().parents[2] / "examples" / "horovod_digits.py"
    command = [
        *(sys.executable, "-m", "herring.command.cli", "run", "-np", "2", "-H", "localhost:2"),
        *("--horovod", "--start-timeout", "80", "--gloo", "--timeout", "90"),
        *("--output-filename", str(tmp_path), sys.executable, str(example), "--epochs", "2"),
    ]
    done = warm.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = (tmp_path / "rank.0" / "stdout").read_text()
    assert f"[0] {printed}" in done.stdout
    found = json.loads(printed)
    assert found["workers"] == 2 and found["accuracy"] > 0.5
    assert (tmp_path / "rank.1" / "stdout").read_text() == ""


def test_variables_of_horovod() -> None:
    """Scripts may read Horovod's variables before they call init()."""
    script = "echo " + " ".join(
        f"$HOROVOD_{name}"
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    )
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", "3", "--nodes", "2"]
    command += ["--num-nccl-streams", "2", "--no-stall-check", "--", "bash", "-c", script]
    for environment, wanted in (
        ({"HERRING_AS_HOROVOD": "1"}, ["0 3 0 2 0 2", "1 3 1 2 0 2", "2 3 0 1 1 2"]),
        ({}, [""] * 3),
    ):
        done = warm.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        lines = sorted(done.stdout.splitlines())
        assert lines == [f"[{rank}] {text}" for rank, text in enumerate(wanted)], lines


def test_as_a_module_alone() -> None:
    done = warm.run(
        [sys.executable, "-m", "herring.horovod", *program("horovod_alone", "-x")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout == "total 1.0 ['-x']\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-np", "3", "-H", "localhost:2"], ["-n 3", "2 slots"]),
        (["-H", "localhost:none"], ["'none' slots", "1 or more"]),
        (["--hostfile", "/nowhere"], ["--hostfile /nowhere"]),
        (["-np", "2", "--min-np", "3"], ["--min-workers 3", "1 to 2"]),
        (["--host-discovery-script", "echo a", "-H", "b"], ["-script and -H: give only one"]),
        (["--host-discovery-script", "echo no; exit 3"], ["exited with status 3"]),
        (["--host-discovery-script", "echo a:0"], ["a has '0' slots", "1 or more"]),
        (["--host-discovery-script", "echo a", "--servers", "1"], ["leave out --servers"]),
        (["-np", "2", "--slots-per-host", "2"], ["--slots-per-host is for", "host1:4"]),
        (
            ["-np", "2", "--host-discovery-script", "echo a", "--elastic-timeout", "0"],
            ["1 of 2 slots (-n)", "within 0 s (--wait)"],
        ),
        (["--start-timeout", "0"], ["--start-timeout '0'", "0.01 s"]),
    ],
)
def test_refused_options(options: list[str], words: list[str]) -> None:
    done = warm.run(
        [sys.executable, "-m", "herring.command.cli", "run", *options, "true"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_after_a_failure_it_begins_anew() -> None:
    job = run_job(["-n", "3", "--nodes", "2"], program("horovod_begins_anew"))
    assert job.returncode == 0 and job.stdout.count("went on") == 3, job.stdout[-4000:]
    for number in range(3):
        warning = rf"init\(\) does nothing, .* until it calls shutdown.*failure {number}"
        assert len(re.findall(warning, job.stdout)) == 3, job.stdout[-4000:]


def test_death() -> None:
    script = program("horovod_death")
    job = run_job(["-n", "3", "--keep-going"], script)
    assert job.stdout.count("survived") == 2, job.stdout[-4000:]


def test_death_in_partial_rounds() -> None:
    layout = ["-n", "3", "--nodes", "2", "--servers", "2", "--keep-going"]
    job = run_job(layout, program("horovod_partial_killed"))
    told = re.findall(r"survivor \d has (\S+)", job.stdout)
    assert len(told) == 2 and len(set(told)) == 1, job.stdout[-4000:]


@pytest.mark.timeout(100)
def test_averages_of_those_that_are_left() -> None:
    """With joined_as_zeros=False; all ranks must say so."""
    job = run_job(["-n", "3", "--nodes", "2"], program("horovod_joined_left"), 80)
    assert job.returncode == 0, job.stdout[-4000:]


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("tensorflow", ["tensorflow", "tensorflow.mpi_ops", "tensorflow.keras"]),
        ("keras", ["keras", "keras.callbacks"]),
    ],
)
def test_without_other_frameworks(package: str, modules: list[str]) -> None:
    code = program("horovod_without", package, *modules)
    subprocess.run([sys.executable, *code], check=True, timeout=600)


def test_import_herring_loads_no_torch() -> None:
    expect = "import sys, herring, herring.horovod; assert not {'torch', 'keras'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", expect], check=True, timeout=600)
