"""Grouped collectives: a list of arrays is one operation, which succeeds or fails as a whole."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_of_everything(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("grouped")))


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_different_lists_change_nothing(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("grouped_different")))


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_what_one_rank_refuses_changes_nothing(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("grouped_refused")))


@pytest.mark.parametrize("layout", ["alone", "dedicated-servers"])
def test_tensors(layout: str) -> None:
    pytest.importorskip("torch")
    expect_success(run_job(LAYOUTS[layout], program("grouped_tensors")))


def test_a_death_changes_nothing_where_it_fails() -> None:
    job = run_job(["-n", "3", "--nodes", "3", "--keep-going"], program("grouped_death"))
    assert job.stdout.count("survived") == 2, job.stdout[-4000:]
