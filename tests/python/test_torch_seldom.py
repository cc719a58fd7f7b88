"""Jobs whose ranks meet seldom, while servers or workers die."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import expect_known, expect_success, program, run_job

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_meets() -> None:
    words = ["--steps", "100", "--every", "20", "--wire-dtype", "fp8"]
    script = program("diloco", *words, folder=EXAMPLES)
    output = expect_success(run_job(["-n", "2", "--nodes", "2"], script))
    assert "100 steps, 5 meetings: test loss" in output
    assert "parameters of all ranks: bit-identical" in output
    losses = [float(loss) for loss in re.findall(r"\bloss ([\d.]+)", output)]
    assert losses[-1] < 3.2, output  # of guesses it is 4.6


def test_servers_that_die_in_meetings_change_no_bit() -> None:
    digests = []
    for arguments in ([], ["kill"]):
        layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
        script = program("failover_diloco", *arguments)
        output = expect_success(run_job(layout, script, HERRING_FAILOVER="true"))
        assert output.count("is replaced by") == 2 * len(arguments), output
        digests.append(sorted(set(re.findall(r"rank \d: [0-9a-f]{64}", output))))
        assert len(digests[-1]) == 3, output
    assert digests[0] == digests[1]


@pytest.mark.parametrize("layout", [["-n", "3"], ["-n", "3", "--nodes", "3"]])
def test_ranks_learn_in_a_meeting_that_one_has_died(layout: list[str]) -> None:
    expect_known(layout, program("diloco_death"), victim=1, survivors=2)


@pytest.mark.usefixtures("runtime_folder")
@pytest.mark.parametrize(
    "events", [["1 20 SIGKILL"], ["0 20 SIGKILL", "2 32 SIGKILL"]], ids=["one-dies", "two-in-turn"]
)
def test_meetings_go_on_when_workers_die_and_come(tmp_path: Path, events: list[str]) -> None:
    script = program("elastic_diloco", str(tmp_path), "60", *events)
    output = expect_success(run_job(["--elastic", "-n", "3"], script))
    assert output.count("is done: True") == 3, output
    assert len(list(tmp_path.glob("event*"))) == len(events)
