"""Who takes part in each generation of an elastic job. Pure: no connections and no clock.

A generation is a job of Herring with a fixed set of workers and servers. When a worker is lost, its
generation fails, and those that are left form the next one. When a worker comes, its generation
ends between two steps. A member says that it *waits* when it is in no generation any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from herring.base.units import counted

# Newcomers wait for so long for others, so that several that start together come together.
SETTLE_SECONDS = 0.5
# Servers have so long to see that their generation has ended.
SERVER_SECONDS = 2.0
# If no worker of the last generation is left, new workers wait for so long for others.
ANEW_SECONDS = 5.0


@dataclass(frozen=True)
class Rules:
    """What an elastic job needs."""

    size: int  # the number of workers with which it begins
    servers: int = 0  # the number of dedicated servers with which it begins
    least: int = 1  # the fewest workers with which it goes on
    most: int = 1 << 20  # the most workers that it takes
    # Seconds that it waits for enough workers, and for a member of a generation that has ended for
    # others.
    patience: float = 60.0
    # How often it begins anew for other workers; None means that there is no limit.
    resets: int | None = None


@dataclass
class Member:
    """A worker or a server that is connected."""

    number: int  # identifies its connection
    is_server: bool  # whether it is a dedicated server
    host: str  # the identity of its host
    slot: int = 0  # the place that its launcher gave it; orders workers that come together
    generation: int = 0  # the last generation that it took part in, or 0
    rank: int = -1  # its rank there, or -1
    address: str = ""  # where it listens in case that it becomes rank 0
    waits_since: float | None = None  # when it began to wait for the next generation, or None
    leaves: bool = False  # whether it will be in no further generation

    @property
    def described(self) -> str:
        """The member's name in messages."""
        if self.is_server:
            return "a server"
        return f"worker {self.slot}" if self.rank < 0 else f"rank {self.rank} (worker {self.slot})"


@dataclass(frozen=True)
class Formed:
    """A new generation."""

    number: int  # 1, 2, and so on
    workers: tuple[Member, ...]  # its workers, by rank
    servers: tuple[Member, ...] = ()  # its dedicated servers
    # Members of the generation before that are still in it, and are left behind.
    evicted: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Stop:
    """The job ends, because no generation may follow."""

    why: str


@dataclass
class Generations:
    """The members of an elastic job, and its present generation."""

    rules: Rules  # what the job needs
    number: int = 0  # the present generation; 0 means that there was none yet
    finished: bool = False  # Whether a worker has ended its training. Nobody may join any more.
    _members: dict[int, Member] = field(default_factory=dict)
    _size: int = 0  # of the present generation
    _left: int = 0  # workers of the present generation that are gone

    def enter(self, member: Member, size: int = 0) -> None:
        """Adds a member; one that has come back to a new lobby has a generation."""
        self._members[member.number] = member
        if member.generation > self.number:
            self.number, self._size, self._left = member.generation, size, 0

    def leave(self, member: Member) -> None:
        """Removes a member that is gone."""
        del self._members[member.number]
        if self._is_present(member):
            self._left += 1

    def wait(self, member: Member, address: str, now: float) -> None:
        """Records that a member waits for the next generation, and listens at an address."""
        member.address = address
        member.waits_since = now

    def finish(self, member: Member) -> None:
        """Records that a worker has ended its training."""
        self.finished = True
        if self._is_present(member):
            self._left += 1
        member.generation = 0
        member.waits_since = None

    @property
    def present(self) -> list[Member]:
        """The workers that are in the present generation or were in it and wait, by rank."""
        found = [one for one in self.workers if self._is_present(one)]
        return sorted(found, key=lambda one: one.rank)

    def with_generation(self, number: int) -> list[Member]:
        """Returns the workers and servers whose last generation is this one, and not 0."""
        return [one for one in self._members.values() if one.generation == number > 0]

    @property
    def _unseen(self) -> int:
        """The workers of the present generation that a lobby has not seen yet that began later."""
        return max(self._size - self._left - len(self.present), 0)

    @property
    def last(self) -> bool:
        """Whether no generation may follow the present one."""
        return self.rules.resets is not None and self.number > self.rules.resets

    @property
    def superfluous(self) -> list[Member]:
        """The members that wait in vain, because the training has ended."""
        waiting = [one for one in self._members.values() if one.waits_since is not None]
        return [one for one in waiting if self.finished and not self._is_present(one)]

    def changes(self, now: float) -> tuple[bool, float | None]:
        """Returns whether the present generation must end for those that come or leave, or when.

        Returns:
            Whether it must end now; and when to ask again, or None.
        """
        present = self.present
        if self.number == 0 or self.finished or not present:
            return False, None
        if any(one.waits_since is not None for one in present):
            return False, None  # it has ended already
        if self._unseen:
            return False, None  # all of them must hear of it
        serving = [one for one in self._members.values() if one.is_server]
        leaving = [one for one in serving if one.leaves and one.generation == self.number]
        if leaving or any(one.leaves for one in present):
            return True, None
        if self.last:
            return False, None  # a healthy generation does not end for newcomers
        room = len(present) < self.rules.most
        since = [
            one.waits_since
            for one in self._members.values()
            if one.waits_since is not None and (one.is_server or room)
        ]
        if not since:
            return False, None
        due = min(since) + SETTLE_SECONDS
        return now >= due, None if now >= due else due

    def next(self, now: float) -> tuple[Formed | Stop | None, float | None]:
        """Returns the new generation, why the job ends, or None; and when to ask again, or None."""
        rules = self.rules
        present = self.present
        waiting = [one for one in self.workers if one.waits_since is not None]
        if self.finished:
            waiting = [one for one in waiting if self._is_present(one)]
        if not waiting:
            return None, None
        busy = [one for one in present if one.waits_since is None]
        if present and len(busy) == len(present):
            return None, None  # it goes on
        if self.last:
            return Stop(self._too_often()), None
        own = [one for one in present if one.waits_since is not None] or waiting
        since = min(one.waits_since for one in own if one.waits_since is not None)
        give_up = since + rules.patience
        servers = [one for one in self._members.values() if one.is_server and not one.leaves]
        serving = [one for one in servers if one.waits_since is not None]
        if present:
            ready = not busy and not self._unseen
            until = give_up
        else:
            ready = len(waiting) >= rules.size and len(serving) >= rules.servers
            until = give_up if self.number == 0 else min(since + ANEW_SECONDS, give_up)
        if not ready and now < until:
            return None, until
        if present and len(serving) < len(servers) and now < since + SERVER_SECONDS:
            return None, since + SERVER_SECONDS
        if len(waiting) < rules.least and not self.finished:
            if now < give_up:
                return None, give_up
            return Stop(self._too_few(len(waiting))), None
        return self._form(waiting, serving, busy), None

    def awaited(self) -> str:
        """Returns whom the next generation waits for, if `next` says that it waits."""
        rules, present = self.rules, self.present
        waiting = [one for one in self._members.values() if one.waits_since is not None]
        workers = sum(not one.is_server for one in waiting)
        if busy := [one for one in present if one.waits_since is None]:
            return ", ".join(one.described for one in busy) + " to leave the step of the others"
        if present and self._unseen:
            return f"{counted(self._unseen, 'worker')} of it to connect to this lobby"
        if present and workers >= rules.least:
            return "servers to leave the generation before"
        fewest = rules.least if present else rules.size
        missing = [
            counted(count, noun)
            for count, noun in (
                (fewest - workers, "more worker"),
                (rules.servers - len(waiting) + workers, "more server"),
            )
            if count > 0 and (noun == "more worker" or not present)
        ]
        return f"{' and '.join(missing)} to come"

    def _form(self, waiting: list[Member], serving: list[Member], busy: list[Member]) -> Formed:
        def place(one: Member) -> tuple[int, int, int]:
            rank = one.rank if self._is_present(one) else 1 << 30
            return rank, one.slot, one.number

        chosen = sorted(waiting, key=place)[: self.rules.most]
        first: dict[str, tuple[int, int, int]] = {}  # of each host, whose ranks are consecutive
        for one in chosen:
            first.setdefault(one.host, place(one))
        chosen.sort(key=lambda one: (first[one.host], place(one)))
        self.number += 1
        self._size, self._left = len(chosen), 0
        for rank, one in enumerate(chosen):
            one.rank = rank
        for one in [*chosen, *serving]:
            one.generation, one.waits_since = self.number, None
        return Formed(self.number, tuple(chosen), tuple(serving), tuple(busy))

    def _too_few(self, waiting: int) -> str:
        least, patience = self.rules.least, self.rules.patience
        have = "1 worker is" if waiting == 1 else f"{waiting} workers are"
        return (
            f"only {have} {'left' if self.number else 'here'}, at least {least} (--min-workers) "
            f"must take part, and no other has come within {patience:g} s (--wait)"
        )

    def _too_often(self) -> str:
        return (
            f"it has begun anew {counted(self.rules.resets or 0, 'time')} for other workers, and "
            "may not again (--reset-limit)"
        )

    @property
    def workers(self) -> list[Member]:
        """All workers, also those that wait."""
        return [one for one in self._members.values() if not one.is_server]

    def _is_present(self, member: Member) -> bool:
        return not member.is_server and member.generation > 0 and member.generation == self.number
