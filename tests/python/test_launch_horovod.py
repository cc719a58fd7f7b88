"""Horovod's options and variables: taken where there is a counterpart, else a line that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import herring.horovod
import warm
from herring.command import cli, horovodrun
from herring.command.run import _elastic
from herring.errors import ConfigurationError
from herring.launch.environment import passed_environment
from herring.launch.horovod_settings import read_variables
from herring.launch.options import Elastic
from launched import HERRING, LIMIT


def parsed(*options: str) -> list[str]:
    return horovodrun.assignments(cli.make_parser().parse_args(["run", *options, "--", "true"]))


def test_options_with_a_counterpart_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = parsed(
        *("--fusion-threshold-mb", "32", "--log-level", "TRACE"),
        *("--stall-check-warning-time-seconds", "30", "--stall-check-shutdown-time-seconds", "90"),
        *("--gloo-timeout-seconds", "20", "--timeline-filename", "t.json"),
    )
    assert found == [
        "HERRING_BUFFER_BYTES=33554432",
        "HERRING_LOG_LEVEL=debug",
        "HERRING_WARN_AFTER=30",
        "HERRING_TIMEOUT=90",
        "HERRING_CONNECT_TIMEOUT=20",
        "HOROVOD_TIMELINE=t.json",
    ]
    assert parsed("--no-stall-check") == ["HERRING_WARN_AFTER=604800"]
    # 0 is what Herring does by itself; nothing is left from one command line to the next.
    assert parsed("--fusion-threshold-mb", "0", "--stall-check-shutdown-time-seconds", "0") == []
    assert capsys.readouterr().err == ""


def test_options_of_elastic_training() -> None:
    for least in ("--min-np", "--min-num-proc"):
        options = ["-n", "4", least, "2", "--elastic-timeout", "600", "--reset-limit", "3"]
        options += [least.replace("min", "max"), "8"]
        found = cli.make_parser().parse_args(["run", *options, "--", "true"])
        assert _elastic(found) == Elastic(least=2, patience=600, most=8, resets=3)
    for option in ("--elastic-timeout", "--max-np", "--reset-limit"):
        found = cli.make_parser().parse_args(["run", option, "600", "--", "true"])
        with pytest.raises(ConfigurationError, match="give --elastic"):
            _elastic(found)


@pytest.mark.parametrize(
    "options",
    [
        *(["--blacklist-cooldown-range", "1", "9"],),
        *(["--cycle-time-ms", "5"], ["--gloo"], ["--autotune"], ["--mpi-args", "x"], ["--jsrun"]),
        *(["--stall-check"], ["--verbose"], ["--no-log-hide-timestamp"]),
    ],
)
def test_options_without_one_are_named(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parsed(*options) == []
    said = capsys.readouterr().err
    assert said.startswith(f"herring run: {options[0]} has no meaning with Herring: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--log-level", "loud"], ["--log-level 'loud'", "trace, debug"]),
        (["--fusion-threshold-mb", "x"], ["--fusion-threshold-mb 'x'", "a number"]),
        (["--stall-check-warning-time-seconds", "-3"], ["'-3' is not valid", "seconds"]),
        (["--min-np", "x"], ["--min-np", "'x' is not an integer"]),
        (["--slots", "2"], ["--slots is not supported", "host1:4"]),
        (["--version"], ["--version is not supported", "'herring --version'"]),
    ],
)
def test_wrong_values_are_named(
    options: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*options)
    said = capsys.readouterr().err
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ({"min_np": 2}, "--min-np"),
        ({"max_num_proc": 2}, "--max-np"),
        ({"slots": 2}, "--slots-per-host"),
        ({"reset_limit": 2}, "--reset-limit"),
        ({"host_discovery_script": "find"}, "--host-discovery-script"),
        ({"cooldown_range": (1, 2)}, "--restarts"),
    ],
)
def test_a_job_of_a_function_is_not_elastic(argument: dict[str, object], option: str) -> None:
    with pytest.raises(NotImplementedError, match="keep the processes") as error:
        herring.horovod.run(print, **argument)
    assert f"'herring run --elastic --horovod', which has {option}" in str(error.value)
    cli.make_parser().parse_args(["run", option, "2", "--", "true"])  # there is such an option


def test_variables() -> None:
    environ = {
        "HOROVOD_FUSION_THRESHOLD": "1048576",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
        "HOROVOD_LOG_LEVEL": "fatal",
        "HERRING_LOG_LEVEL": "info",  # comes first
        "HOROVOD_GLOO_IFACE": "",
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_AUTOTUNE": "0",  # asks for nothing
        "HOROVOD_RANK": "1",
    }
    settings, lines = read_variables(environ)
    assert settings == {"buffer_bytes": "1048576", "warn_after": "30"}
    assert lines == [
        "HOROVOD_CYCLE_TIME=3.5 has no meaning with Herring: nothing is negotiated in cycles"
    ]
    with pytest.raises(ConfigurationError, match="HOROVOD_FUSION_THRESHOLD=much is not valid"):
        read_variables({"HOROVOD_FUSION_THRESHOLD": "much"})
    passed, _ = passed_environment(environ, [])
    assert passed["HOROVOD_CYCLE_TIME"] == "3.5"
    assert "HOROVOD_RANK" not in passed


def test_they_hold_in_a_job_and_the_timeline_is_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import herring.arrays.runtime, torch; import horovod.torch as hvd; "
        "hvd.init(); hvd.init(); "
        "hvd.allreduce(torch.ones(3), name='gradient'); print(herring.arrays.runtime._settings)"
    )
    trace = tmp_path / "trace.json"
    options = ["--horovod", "--timeline-filename", str(trace)]
    done = warm.run(
        [*HERRING, "run", "-n", "2", *options, "--", sys.executable, "-c", code],
        env={**os.environ, "HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_CYCLE_TIME": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    settings = f"{{'buffer_bytes': '1048576', 'timeline': {str(trace)!r}}}"
    assert done.stdout.count(settings) == 2, done.stdout
    assert done.stderr.count("HOROVOD_CYCLE_TIME=3 has no meaning") == 1  # rank 0 says it
    names = {one["name"] for one in json.loads(trace.read_text()) if one["ph"] == "X"}
    assert "allreduce 'horovod.allreduce.gradient'" in names
