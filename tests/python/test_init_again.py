"""A second call of `init`, and a call without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import warm

pytest.importorskip("herring._core")
pytestmark = pytest.mark.usefixtures("taken_apart")
LIMIT = 600
LAUNCHER = ("RANK", "WORLD_SIZE", "HERRING_RANK", "HERRING_SIZE")
ALONE = "no launcher has started this process"


def run(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    return warm.run(
        [sys.executable, *options, "-c", code],
        env={**environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def refused(first: str, second: str, **variables: str) -> str:
    code = f"""
import herring
herring.init({first})
try:
    herring.init({second})
except herring.ConfigurationError as error:
    print(error)
assert herring.is_initialized()
herring.shutdown()
herring.init({second})
"""
    done = run(code, HERRING_RANK="0", HERRING_SIZE="1", **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("first", "second", "variables"),
    [
        ("", "", {}),
        ("timeout=5", "", {}),
        ("timeout=5", "timeout=5", {}),
        ("timeout='5m'", "timeout=300.0, shm='on'", {}),
        ("", "timeout='30m', server_memory=2**30, log_level='Warning'", {}),
        ("", "flows=3", {"HERRING_FLOWS": "3"}),
    ],
)
def test_the_same_settings_again_are_fine(
    first: str, second: str, variables: dict[str, str]
) -> None:
    assert refused(first, second, **variables) == ""


@pytest.mark.parametrize(
    ("first", "second", "variables", "words"),
    [
        ("", "timeout=5, flows=8", {}, ["timeout=5, flows=8", "with timeout=1800, flows=1"]),
        ("timeout=7", "timeout=5, flows=1", {}, ["init(timeout=5)", "with timeout=7;"]),
        ("", "flows=2", {"HERRING_FLOWS": "3"}, ["with flows=3"]),
        ("flows=2", "flows=3", {"HERRING_FLOWS": "3"}, ["with flows=2"]),
    ],
)
def test_other_settings_are_refused_and_named(
    first: str, second: str, variables: dict[str, str], words: list[str]
) -> None:
    said = refused(first, second, **variables)
    for word in (*words, "shutdown()"):
        assert word in said


@pytest.mark.parametrize("second", ["tmeout=5", "timeout='soon'"])
def test_what_is_no_setting_is_refused_too(second: str) -> None:
    code = f"import herring; herring.init(); herring.init({second})"
    done = run(code, HERRING_RANK="0", HERRING_SIZE="1")
    assert done.returncode == 1
    assert "ConfigurationError" in done.stderr.splitlines()[-1]


def test_a_job_without_a_launcher_says_so_once() -> None:
    again = "import herring; herring.init(); herring.shutdown(); herring.init()"
    done = run(again)
    assert done.returncode == 0
    assert done.stderr.count(ALONE) == 1
    assert len(done.stderr.splitlines()) == 1
    # No warning: the job is set explicitly, warnings are off, or Python is interactive.
    assert run(again, HERRING_RANK="0", HERRING_SIZE="1").stderr == ""
    assert run(again, HERRING_LOG_LEVEL="error").stderr == ""
    assert ALONE not in run("import sys; sys.ps1 = '>>> '; " + again).stderr
