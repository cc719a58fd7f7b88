"""Tests messages between two ranks: tags, any source, order, small and large sizes, and errors."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_messages_between_two_ranks(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("messages")))


def test_a_message_with_the_dead_fails_and_others_arrive() -> None:
    done = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"], program("messages_death")
    )
    assert done.stdout.count("went on") == 3, done.stdout
