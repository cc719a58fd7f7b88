"""Handle.add_done_callback calls each callback once, in order, on a thread of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", ["alone", "one-node", "colocated-servers", "dedicated-servers"])
def test_callbacks_are_called(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("callbacks"), TEST_LAYOUT=layout))


def test_what_callbacks_see_and_raise() -> None:
    layout = ["-n", "4", "--nodes", "2"]
    output = expect_success(run_job(layout, program("callbacks_fail")))
    for rank in range(4):
        assert f"ValueError: bad callback of rank {rank}" in output, output
    assert "SystemExit: asked to end by rank 0" in output, output


def test_shutdown_calls_what_is_pending(tmp_path: Path) -> None:
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    expect_success(run_job(layout, program("callbacks_pending"), FOLDER=str(tmp_path)))


def test_a_callback_may_shut_down() -> None:
    expect_success(run_job(["-n", "3"], program("callbacks_shut_down")))


def test_shutdown_does_not_wait_for_ever() -> None:
    output = expect_success(run_job(["-n", "2", "--servers", "1"], program("callbacks_stuck")))
    assert "a callback of a handle still runs" in output, output
