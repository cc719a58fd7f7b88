"""Groups: every collective inside one, several at a time, and what survives a death."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, program, run_job

SEVERAL = ["one-node", "colocated-servers", "dedicated-servers", "uneven-nodes"]


@pytest.mark.parametrize("options", [[], ["--servers", "1"]], ids=["colocated", "mixed"])
def test_a_death_while_groups_are_formed(options: list[str]) -> None:
    done = run_job(["-n", "3", "--nodes", "3", *options, "--keep-going"], program("groups_forming"))
    assert done.stdout.count("went on") == 2, done.stdout
    assert "AssertionError" not in done.stdout, done.stdout


@pytest.mark.parametrize("layout", SEVERAL)
def test_every_collective_in_a_group(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("groups")))


@pytest.mark.parametrize("layout", SEVERAL)
def test_groups_that_overlap_work_at_the_same_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("groups_at_once")))


def test_who_is_missed_in_a_group_is_named_and_the_others_go_on() -> None:
    expect_success(run_job(LAYOUTS["colocated-servers"], program("groups_missed")))


@pytest.mark.parametrize(("count", "begins"), [(1000, False), (2_000_000, True)])
@pytest.mark.parametrize(
    "layout",
    [
        ["-n", "4"],
        ["-n", "4", "--nodes", "2"],
        ["-n", "4", "--nodes", "4"],
        ["-n", "4", "--nodes", "2", "--servers", "2"],
        ["-n", "4", "--nodes", "4", "--servers", "1"],
    ],
    ids=["one-node", "two-nodes", "with-its-server", "dedicated", "mixed"],
)
def test_a_death_fails_the_groups_it_was_in_and_no_others(
    layout: list[str], begins: bool, count: int
) -> None:
    script = program("groups_death", str(count), *(["begins"] if begins else []))
    long = {"HERRING_TIMEOUT": "600", "HERRING_HEARTBEAT_TIMEOUT": "600"}
    done = run_job([*layout, "--keep-going"], script, **long)
    assert done.stdout.count("went on") == 3, done.stdout
    assert "AssertionError" not in done.stdout, done.stdout
