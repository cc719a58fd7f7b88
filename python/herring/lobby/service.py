"""The lobby of an elastic job: where its workers and servers wait for their next generation.

It runs in `herring run --elastic` or in `herring rendezvous`, outside of the workers, so that any
of them may die. It is not needed while a generation runs. Members that lose it connect again, and
one that was started anew learns from them which generation is running.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from herring.base.reminders import FIRST_REMINDER, LONG_START, Reminders
from herring.base.units import counted, in_seconds
from herring.lobby import versions
from herring.lobby.generations import Formed, Generations, Member, Rules, Stop
from herring.rendezvous.channel import LOBBY, Channel, Listener
from herring.rendezvous.network import with_port

_HELLO_SECONDS = 10.0
_SEND_SECONDS = 5.0
_MOST_TEXT = 300  # characters of a text that a member sends
_ENDS = {"kind": "ends"}
_LEAVE = {"kind": "leave"}


class Lobby:
    """Accepts members, and tells them about their generations."""

    def __init__(
        self, listener: socket.socket, secret: bytes, rules: Rules, say: Callable[[str, str], None]
    ) -> None:
        """Starts threads that serve the members.

        Args:
            listener: A socket that listens; `close` closes it.
            say: Tells the user; called from any thread with a level and a text.
        """
        self.address = with_port(*listener.getsockname()[:2])  # ``HOST:PORT`` where it listens
        self._say = say
        self._generations = Generations(rules)
        self._latest_slots: frozenset[int] = frozenset()
        self._dismissed: set[int] = set()  # places whose workers are to leave
        self._channels: dict[int, Channel] = {}
        self._asked = 0  # the generation whose first rank was told to end it at a commit
        self._next_number = 1
        self._closed = False
        self._failed = ""
        self._ends = False
        self._opened = time.monotonic()
        self._reminders: Reminders | None = None  # of the wait for the next generation
        self._changed = threading.Condition()
        self._listener = Listener(
            [listener], secret, LOBBY, self._serve, lambda text: say("warning", text)
        )
        threading.Thread(target=self._act, name="herring-lobby", daemon=True).start()

    @property
    def failed(self) -> str:
        """Why the job has ended: too few workers were left for too long. Empty if it goes on."""
        return self._failed

    @property
    def finished(self) -> bool:
        """Whether a worker has ended its training."""
        return self._generations.finished

    @property
    def latest_slots(self) -> frozenset[int]:
        """The places of the workers of the latest generation; empty if there was none yet."""
        return self._latest_slots

    def wait(self) -> str:
        """Waits until the job has failed, and returns the reason."""
        with self._changed:
            while not self._failed:
                self._changed.wait(1.0)  # so that signals are seen
            return self._failed

    def finish(self) -> None:
        """Says that the training has ended, so that nobody joins any more."""
        with self._changed:
            self._generations.finished = True
            self._changed.notify_all()

    def end(self) -> None:
        """Says that the whole job is being ended: a signal to a member is no mere notice for it."""
        with self._changed:
            self._ends = True
            for number in list(self._channels):
                self._send_to(number, _ENDS)

    def dismiss(self, slots: Iterable[int]) -> None:
        """Lets the workers in these places leave between two steps, also those that come later."""
        with self._changed:
            new = set(slots) - self._dismissed
            self._dismissed |= new
            for member in self._generations.workers:
                if member.slot in new:
                    self._send(member, _LEAVE)

    def close(self) -> None:
        """Lets go of all members."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            channels = list(self._channels.values())
        self._listener.close()
        for channel in channels:
            channel.shut()

    # One thread for each member.

    def _serve(self, channel: Channel) -> None:
        member = None
        try:
            keep_alive(channel.socket)
            hello = channel.receive(_HELLO_SECONDS)
            channel.send(versions.own(), _SEND_SECONDS)
            if differs := versions.difference(hello, "a process that has come", "this lobby"):
                self._say("error", differs)
                return
            member = self._enter(channel, hello)
            while True:
                self._hear(member, channel.receive(None))
        except (OSError, KeyError, TypeError, ValueError):
            pass  # it is gone, or sends what no member does
        finally:
            if member is not None:
                self._leave(member)
            channel.close()

    def _enter(self, channel: Channel, hello: Mapping[str, Any]) -> Member:
        with self._changed:
            if self._closed:
                raise ConnectionError
            member = Member(
                self._next_number,
                bool(hello["server"]),
                str(hello["host"])[:_MOST_TEXT],
                int(hello["slot"]),
                int(hello["generation"]),
                int(hello["rank"]),
                leaves=bool(hello["leaves"]),
            )
            self._next_number += 1
            self._channels[member.number] = channel
            self._generations.enter(member, int(hello["size"]))
            if self._ends:
                self._send(member, _ENDS)
            if member.slot in self._dismissed and not member.is_server:
                self._send(member, _LEAVE)
            self._changed.notify_all()
            return member

    def _leave(self, member: Member) -> None:
        with self._changed:
            self._channels.pop(member.number, None)
            self._generations.leave(member)
            if not member.is_server:
                # Those that are starting their job must not wait for this worker.
                lost = {"kind": "broken", "number": member.generation}
                for one in self._generations.with_generation(member.generation):
                    self._send(one, lost)
            self._changed.notify_all()

    def _hear(self, member: Member, message: Mapping[str, Any]) -> None:
        with self._changed:
            kind = message["kind"]
            if kind == "wait" and self._failed:
                self._send(member, {"kind": "failed", "why": self._failed})
            elif kind == "wait":
                address = str(message["address"])[:_MOST_TEXT]
                self._generations.wait(member, address, time.monotonic())
                if self._generations.last and not self._generations.finished:
                    self._tell_vain_wait(member)
                self._changed.notify_all()
            elif kind == "leaves":
                member.leaves, member.waits_since = True, None
                self._say("info", f"{member.described} leaves the elastic job")
                self._changed.notify_all()
            elif kind == "finished":
                self._generations.finish(member)
                self._send(member, {"kind": "over"})
                self._changed.notify_all()
            elif member.generation != self._generations.number:
                pass  # it speaks of a generation that has ended
            elif kind == "switch":
                self._tell_others(member, {"kind": "switch", "at": int(message["at"])})
            elif kind == "commits":
                first = next(iter(self._generations.present), None)
                if first is not None:
                    answer = {"kind": "commits", "rank": member.rank, "at": int(message["at"])}
                    self._send(first, answer)

    def _tell_vain_wait(self, member: Member) -> None:
        present = self._generations.present
        if present and member not in present and not member.is_server:
            text = "waits in vain: the job may not begin anew for it (--reset-limit)"
            self._say("info", f"{member.described} {text}")

    # The thread that acts.

    def _act(self) -> None:
        with self._changed:
            while not self._closed:
                again = self._step(time.monotonic())
                self._changed.wait(None if again is None else max(again - time.monotonic(), 0))

    def _step(self, now: float) -> float | None:
        """Does what is due; returns when something is due again, or None."""
        if self._failed:
            return None
        generations = self._generations
        for member in generations.superfluous:
            member.waits_since = None
            self._send(member, {"kind": "over"})
        formed, later = generations.next(now)
        if isinstance(formed, Formed):
            self._reminders = None
            self._begin(formed)
            return now
        if isinstance(formed, Stop):
            self._failed = formed.why
            self._changed.notify_all()
            self._say("error", f"the elastic job ends: {formed.why}")
            for number in list(self._channels):
                self._send_to(number, {"kind": "failed", "why": formed.why})
            return None
        reminder = self._remind(now) if later is not None else None
        if later is None:
            self._reminders = None
        wanted, settled = generations.changes(now)
        if wanted and self._asked != generations.number:
            self._asked = generations.number
            self._send(generations.present[0], {"kind": "newcomers"})
        times = [at for at in (later, settled, reminder) if at is not None]
        return min(times, default=None)

    def _remind(self, now: float) -> float:
        """Says after a while whom the next generation waits for; returns when it says so next."""
        if self._reminders is None:
            self._reminders = Reminders(now, FIRST_REMINDER)
        since = self._reminders.since
        if self._reminders.due(now):
            waited = in_seconds(now - since)
            text = f"the elastic job has waited {waited} for {self._generations.awaited()}"
            # At first the others may take as long to start as the first one has taken.
            first = self._generations.number == 0
            usual = min(since - self._opened, LONG_START) if first else 0.0
            self._say("info" if now - since < usual else "warning", text)
        return self._reminders.next

    def _begin(self, formed: Formed) -> None:
        nonce = secrets.token_hex(32)
        what = {
            "kind": "generation",
            "number": formed.number,
            "size": len(formed.workers),
            "servers": len(formed.servers),
            "address": formed.workers[0].address,
            "nonce": nonce,
        }
        self._latest_slots = frozenset(member.slot for member in formed.workers)
        for rank, member in enumerate(formed.workers):
            self._send(member, {**what, "rank": rank})
        for member in formed.servers:
            self._send(member, {**what, "rank": -1})
        for member in formed.evicted:
            text = "the others went on without this worker, which did not come out of its step"
            self._send(member, {"kind": "evicted", "why": text})
            if (channel := self._channels.get(member.number)) is not None:
                channel.shut()
        if formed.number > 1:
            text = f"generation {formed.number} of the elastic job begins with "
            text += counted(len(formed.workers), "worker")
            if formed.evicted:
                text += ", without " + ", ".join(one.described for one in formed.evicted)
            self._say("info", text)

    def _tell_others(self, member: Member, message: Mapping[str, Any]) -> None:
        for one in self._generations.present:
            if one is not member:
                self._send(one, message)

    def _send(self, member: Member, message: Mapping[str, Any]) -> None:
        self._send_to(member.number, message)

    def _send_to(self, number: int, message: Mapping[str, Any]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            return
        try:
            channel.send(message, _SEND_SECONDS)
        except OSError:
            channel.shut()  # its thread sees the end


def keep_alive(connection: socket.socket) -> None:
    """Lets the system find out within some 15 s that the other end's host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
