"""Notes of planned rounds: each rank's note reaches all ranks in the same round and no other."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(program("notes"), id="every-byte-arrives"),
        pytest.param(program("notes_refused"), id="refused"),
        pytest.param(program("notes_of_gradients"), id="gradient-lists"),
    ],
)
def test_notes(script: list[str], layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], script))


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_a_plan_closed_without_its_note_fails_the_job(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("notes_closed_without")))
