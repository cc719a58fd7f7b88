"""Where the time of training steps goes, on the board that shows the loss: TensorBoard, W&B ..."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from herring.arrays.arguments import shown
from herring.arrays.runtime import job
from herring.arrays.seconds import StepMeter
from herring.errors import InvalidArgumentError


class StepLogger:
    """Writes the seconds of a training step to TensorBoard, Weights & Biases or something else.

        log = herring.StepLogger(writer if herring.rank() == 0 else None, every=10)
        for batch in loader:
            ...
            optimizer.step()
            log.step()

    The values are means of a step on this rank: ``herring/step_seconds``,
    ``herring/compute_seconds``, ``herring/exposed_seconds`` (the program waited for results),
    ``herring/node_stage_seconds``, ``herring/push_seconds``, ``herring/pull_seconds``,
    ``herring/bytes_sent`` and ``herring/bytes_received``. ``herring/late_seconds`` is how much
    later than the median rank this rank gave its gradients lately; 0 if it is rarely late. The
    time between the first call of `step` and the second one is the first that counts.
    """

    def __init__(self, board: Any, every: int = 10) -> None:
        """Creates the logger; nothing is collective.

        Args:
          board: Where values go: an object with ``add_scalar(tag, value, step)``, such as a
            SummaryWriter; an object with ``log(values, step=)``, such as a run of W&B; or a
            function of a dictionary and a step. None writes nothing.
          every: Steps between two writes.

        Raises:
          InvalidArgumentError: `board` is none of these, or `every` is not a positive integer.
        """
        if not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"every is {shown(every)}; it must be at least 1")
        self._write = _writer_to(board)
        self._every = every
        self._meter = StepMeter()
        self._steps = 0

    def step(self, step: int | None = None) -> dict[str, float]:
        """Notes that a training step has ended; writes the values of the last `every` steps.

        Args:
          step: The step's number on the board. By default the calls are counted from 0; W&B gets
            the values with the program's next `log`.

        Returns:
          The values that were written; empty for most steps.

        Raises:
          ShutdownError: This process is not in a job.
        """
        self._meter.step(job())
        number, self._steps = self._steps if step is None else step, self._steps + 1
        if self._write is None or self._meter.steps < self._every:
            return {}
        values = self._meter.read()
        self._write(values, number, step is not None)
        return values


def _writer_to(board: Any) -> Callable[[dict[str, float], int, bool], None] | None:
    """Returns a function of values, the step, and whether the user has given this step."""
    if board is None:
        return None
    if callable(getattr(board, "add_scalar", None)):

        def add_scalars(values: dict[str, float], step: int, given: bool) -> None:
            for name, value in values.items():
                board.add_scalar(name, value, step)

        return add_scalars
    if callable(getattr(board, "log", None)):
        # W&B counts calls of log() by itself, unless it is told the step in each of them.
        joins_next = _takes(board.log, "commit")

        def log(values: dict[str, float], step: int, given: bool) -> None:
            if joins_next and not given:
                board.log(values, commit=False)
            else:
                board.log(values, step=step)

        return log
    if callable(board):
        return lambda values, step, given: board(values, step)
    raise InvalidArgumentError(
        f"board is {shown(board)}; it must have add_scalar() or log(), or be a function, or None"
    )


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
