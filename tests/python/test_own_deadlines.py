"""A rank whose own deadline ends its part of the job tells the others, if it stays or leaves."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job


@pytest.mark.parametrize("stays", ["yes", "no"], ids=["stays", "leaves"])
@pytest.mark.parametrize("kind", ["planned", "array", "ring", "meeting"])
@pytest.mark.parametrize(
    ("layout", "fails", "late"),
    [
        (["-n", "2"], 0, 1),
        (["-n", "4"], 2, 1),
        (["-n", "4", "--nodes", "2"], 0, 1),
        (["-n", "4", "--nodes", "2"], 2, 3),
    ],
    ids=["pair", "one-node", "rank-0-of-two-nodes", "two-nodes"],
)
def test_the_others_learn_why_a_rank_gave_up(
    kind: str, layout: list[str], fails: int, late: int, stays: str
) -> None:
    script = program("own_deadline", kind, str(fails), str(late), stays)
    output = expect_success(run_job(layout, script))
    assert output.count("told why") == int(layout[1]) - 1, output


def test_a_neighbour_learns_of_it_after_rank_0_has_left() -> None:
    output = expect_success(
        run_job(["-n", "3", "--servers", "1"], program("own_deadline_after_zero"))
    )
    assert output.count("told") == 1, output
