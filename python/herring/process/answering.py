"""Daemon threads that answer the core, and how they end with the process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable


class Answering:
    """A daemon thread that answers the core until the process ends."""

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        *,
        opens: Callable[[], None],
        closes: Callable[[], None],
        patience: float,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Arranges the end of the thread, which does not run yet.

        Args:
          name: The thread's name.
          run: What the thread does; it returns after `closes`.
          opens: Tells the core that somebody answers.
          closes: Tells the core that nobody answers any more.
          patience: Seconds for which the end of the process waits for the thread.
          after: What is left to do then, or if the thread cannot be started.
        """
        self._name, self._run, self._patience = name, run, patience
        self._opens, self._closes, self._after = opens, closes, after
        self.thread: threading.Thread | None = None
        # After the job has ended: `herring.arrays.runtime` registers its own function later.
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)  # the thread runs in the parent only

    def start(self) -> None:
        """Starts the thread, if that has not been tried already."""
        if self.thread is not None:
            return
        self._opens()
        self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no more threads, no daemon threads here, or the interpreter ends
            self._closes()
            self._after()

    def _end(self) -> None:
        ending, self.thread = self.thread, None
        if ending is None:
            return
        self._closes()
        if ending.ident is not None:
            ending.join(self._patience)
        self._after()

    def _forget(self) -> None:
        self.thread = None
