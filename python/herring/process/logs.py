"""The log: the core's lines on their way to Python's `logging`.

The core queues its lines and never waits for Python. A daemon thread takes them and hands them to
the logger ``herring``. A program that has configured no handler for this logger gets the lines on
standard error, in the core's own format. If Python does not take lines for 10 seconds, because the
interpreter's lock is held or a handler blocks, the core writes them to standard error itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from herring import _core
from herring.process.answering import Answering

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_NAMES = ("debug", "info", "warning", "error")
_VARIABLE = "HERRING_LOG_LEVEL"
_PATIENCE = 5.0  # seconds for which the end of the process waits for handlers
_SETTLING = 1.0  # seconds for which the end of a job waits for handlers

_logger = logging.getLogger("herring")
_decided = False  # the level, by HERRING_LOG_LEVEL or an option: `logging` has no say in it


def start(settings: Mapping[str, Any]) -> dict[str, str]:
    """Begins to hand the core's lines to `logging`, if that has not begun already.

    ``HERRING_LOG_LEVEL`` and the setting ``log_level`` decide which lines there are. Without them
    the effective level of the logger ``herring`` decides, if the program has given it a level or a
    handler.

    Returns:
        A setting to add: the level that follows from `logging`. Empty if that does not decide.
    """
    global _decided
    _decided = "log_level" in settings or bool(os.environ.get(_VARIABLE))
    _answering.start()
    if _decided or (_logger.level == logging.NOTSET and not _logger.hasHandlers()):
        return {}
    least = _logger.getEffectiveLevel()
    names = (name for level, name in zip(_LEVELS, _NAMES) if least <= level)
    return {"log_level": next(names, _NAMES[-1])}


def settle() -> None:
    """Waits for a moment until handlers have got all lines, for a program that may end abruptly."""
    thread = _answering.thread
    if thread is not None and thread is not threading.current_thread():
        _core.wait_for_log_reader(_SETTLING)


def _run() -> None:
    while lines := _core.take_log_lines():
        for line in lines:
            try:
                _hand_on(*line)
            except Exception:  # of a filter or a handler: what it was given must not be lost
                _core.write_log_line(*line)


def _hand_on(seconds: float, level: int, who: str, text: str) -> None:
    if not _logger.hasHandlers():
        if _logger.level <= _LEVELS[level]:  # NOTSET lets everything pass
            _core.write_log_line(seconds, level, who, text)
        return
    # The core has picked the line already; a level that the logger has of its own still counts.
    picked = _decided and _logger.level == logging.NOTSET
    if not picked and not _logger.isEnabledFor(_LEVELS[level]):
        return
    message = f"{who}: {text}" if who else text
    record = _logger.makeRecord(
        _logger.name, _LEVELS[level], "herring", 0, message, (), None, func=None
    )
    record.created = seconds
    record.msecs = seconds % 1 * 1000
    _logger.handle(record)


# Without the thread, lines go to standard error.
_answering = Answering(
    "herring-log",
    _run,
    opens=_core.open_log_queue,
    closes=_core.close_log_queue,
    patience=_PATIENCE,
    after=_core.flush_log_queue,
)
