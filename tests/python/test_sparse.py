"""Gradients of which only the largest numbers travel."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_largest_numbers_travel(layout: str) -> None:
    assert "are right" in expect_success(run_job(LAYOUTS[layout], program("sparse_rounds")))


def test_servers_add_the_numbers_of_many_nodes() -> None:
    layout = ["-n", "9", "--nodes", "9", "--servers", "1"]
    assert "are right" in expect_success(run_job(layout, program("sparse_rounds")))


def test_the_death_of_servers_changes_nothing() -> None:
    digests = set()
    for arguments in ([], ["kill"]):
        layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
        script = program("sparse_rounds", *arguments)
        output = expect_success(run_job(layout, script, HERRING_FAILOVER="true"))
        assert output.count("is replaced by") == 2 * len(arguments), output
        digests |= set(re.findall(r"are right ([0-9a-f]{64})", output))
    assert len(digests) == 1
