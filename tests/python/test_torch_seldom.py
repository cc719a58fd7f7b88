"""Jobs whose ranks meet seldom, while servers or workers die."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import expect_known, expect_success, program, run_job


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
