"""Ctrl-C and other exceptions end every wait at once, and the job ends soon after.

Deadlines are far beyond the job's time limit, so a wait that only a deadline ends fails the test.
"""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job

LAYOUTS = {
    "one-node": ["-n", "2"],
    "colocated-servers": ["-n", "2", "--nodes", "2"],
    "dedicated-server": ["-n", "2", "--nodes", "2", "--servers", "1"],
}


@pytest.mark.parametrize("layout", ["one-node", "dedicated-server"])
@pytest.mark.parametrize(
    ("call", "elements", "result"),
    [
        ("barrier", 1, 1),
        ("allreduce", 10, 2),
        ("allreduce", 1_000_000, 2),
        ("allgather", 10, 1),
    ],
    ids=["barrier", "small", "large", "allgather"],
)
def test_ctrl_c_comes_out_of_a_wait(
    layout: str, call: str, elements: int, result: int, tmp_path
) -> None:
    script = program("wait_for_interrupt", call, str(elements), str(result))
    output = expect_success(
        run_job(LAYOUTS[layout], script, HERRING_TIMEOUT="600", FOLDER=str(tmp_path))
    )
    assert output.count("interrupted") == 1


def test_a_dropped_handle_holds_nobody_up_and_its_array_lives(tmp_path) -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            program("dropped_handle"),
            HERRING_TIMEOUT="600",
            FOLDER=str(tmp_path),
        )
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("elements", [10, 3_000_000], ids=["small", "large"])
def test_an_uncaught_ctrl_c_ends_the_process_soon(layout: list[str], elements: int) -> None:
    # Rank 0 is interrupted during traffic; the others are told and end by themselves.
    output = run_job(
        [*layout, "--keep-going"],
        program("uncaught_interrupt", str(elements)),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
    ).stdout
    assert output.count("has ended") == 2, output[-4000:]
    assert "KeyboardInterrupt" in output, output[-4000:]
