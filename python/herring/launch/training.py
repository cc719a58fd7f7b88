"""What the launcher knows of the job from inside: who has joined it, and how its training goes."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Sequence

from herring.launch.children import Child, Children
from herring.launch.options import RunOptions
from herring.lobby.generations import Rules
from herring.lobby.service import Lobby
from herring.rendezvous.endpoint import bind_any
from herring.rendezvous.joined import JoinNotices


class Training:
    """The lobby of an elastic job, and the workers of any job that have called ``init()``."""

    def __init__(self, options: RunOptions, children: Children) -> None:
        self._options = options
        self._children = children
        self._joined: JoinNotices | None = None
        # The lobby; None if the job is not elastic, and until `open_lobby`.
        self.lobby: Lobby | None = None

    def open_lobby(
        self, address: str, secret: str, base: dict[str, str], say: Callable[[str, str], None]
    ) -> str:
        """Opens the lobby of an elastic job, and returns where it listens.

        Args:
            secret: The job's secret in hexadecimal.
            say: Tells the user; called from the lobby's threads.
        """
        options, elastic = self._options, self._options.elastic
        assert elastic is not None
        # With a script there is one more for a moment, if the last host is replaced by another one.
        most = Rules.most if elastic.discovery is not None else elastic.most or Rules.most
        rules = Rules(
            *(options.workers, options.servers, elastic.least, most, elastic.patience),
            resets=elastic.resets,
        )
        self.lobby = Lobby(bind_any(address, base), bytes.fromhex(secret), rules, say)
        return self.lobby.address

    def listen(self, job: str, selector: selectors.BaseSelector) -> None:
        """Listens for workers on this machine that join the job of this name.

        Args:
            selector: Watches the socket, with a `JoinNotices` as data. The caller then calls
                `note`.
        """
        self._joined = JoinNotices(job)
        if self._joined.socket is not None:
            selector.register(self._joined.socket, selectors.EVENT_READ, self._joined)

    def note(self) -> None:
        """Records the workers that have joined since the last call."""
        if self._joined is not None:
            self._children.note_joined(self._joined.ranks())

    def close(self) -> None:
        """Closes the lobby and the socket."""
        with contextlib.ExitStack() as stack:
            for each in (self.lobby, self._joined):
                if each is not None:
                    stack.callback(each.close)

    @property
    def failed(self) -> bool:
        """Whether the lobby has ended the job."""
        return self.lobby is not None and bool(self.lobby.failed)

    def has_ended(self) -> bool:
        """Returns whether the training of an elastic job has ended."""
        return self.lobby is not None and self.lobby.finished

    def took_part(self, child: Child) -> bool:
        """Returns whether a worker was in the last generation of an elastic job."""
        slots = self.lobby.latest_slots if self.lobby is not None else ()
        return child.joined and child.task.rank in slots

    def is_over_for(self, workers: Sequence[Child]) -> bool:
        """Returns whether others have ended the training without these workers."""
        if self.lobby is None or not workers or not self.has_ended():
            return False
        return bool(self.lobby.latest_slots) and not any(map(self.took_part, workers))
