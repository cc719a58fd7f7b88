"""herring.torch.StepLogger writes where a step's time goes to the user's board."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job

pytest.importorskip("herring._core")
pytest.importorskip("torch")


@pytest.mark.parametrize("layout", [["-n", "1"], ["-n", "2", "--servers", "1"]])
def test_a_step_logger_writes_to_boards(layout: list[str]) -> None:
    expect_success(run_job(layout, program("boards")))


def test_a_step_logger_writes_to_tensorboard(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    script = """
    import numpy as np, os
    import herring.torch as herring
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    herring.init()
    with SummaryWriter(os.environ["TEST_FOLDER"]) as writer:
        log = herring.StepLogger(writer, every=2)
        for step in range(5):
            log.step()
    events = EventAccumulator(os.environ["TEST_FOLDER"]).Reload()
    scalars = events.Scalars("herring/step_seconds")
    assert [one.step for one in scalars] == [2, 4], scalars
    assert all(one.value > 0 for one in scalars), scalars
    """
    expect_success(run_job(["-n", "1"], script, TEST_FOLDER=str(tmp_path)))
