"""Tests that a process does not grow while groups and series come and go."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_what_has_ended_leaves_nothing_behind(nodes: str) -> None:
    expect_success(run_job(["-n", "2", "--nodes", nodes], program("memory_kept")))
