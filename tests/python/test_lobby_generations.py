"""Who takes part in each generation of an elastic job: pure rules, without connections."""

from __future__ import annotations

import itertools
import random

import pytest

from herring.lobby.generations import (
    ANEW_SECONDS,
    SERVER_SECONDS,
    SETTLE_SECONDS,
    Formed,
    Generations,
    Member,
    Rules,
    Stop,
)


class Job:
    """Generations with members that the test names."""

    def __init__(self, **rules: float) -> None:
        self.generations = Generations(Rules(**rules))  # type: ignore[arg-type]
        self.numbers = itertools.count(1)

    def come(self, slot: int = 0, host: str = "a", server: bool = False, **of: int) -> Member:
        size = of.pop("size", 0)
        member = Member(next(self.numbers), server, host, slot, **of)
        self.generations.enter(member, size)
        return member

    def wait(self, *members: Member, now: float = 0.0) -> None:
        for member in members:
            self.generations.wait(member, f"address of {member.slot}", now)

    def workers(self, count: int, now: float = 0.0) -> list[Member]:
        found = [self.come(slot) for slot in range(count)]
        self.wait(*found, now=now)
        return found

    def form(self, now: float = 0.0) -> list[int]:
        """Returns the slots of the next generation, by rank."""
        formed, _ = self.generations.next(now)
        assert isinstance(formed, Formed), formed
        return [one.slot for one in formed.workers]

    def refuse(self, now: float) -> float | None:
        formed, again = self.generations.next(now)
        assert formed is None
        return again


def test_the_first_generation_waits_for_all() -> None:
    job = Job(size=3, servers=1, patience=60)
    first = job.come(2)
    job.wait(first, now=10)
    assert job.refuse(11) == 70
    job.wait(job.come(0), job.come(1), now=12)
    assert job.refuse(13) == 70
    job.wait(job.come(server=True), now=14)
    formed, _ = job.generations.next(14)
    assert isinstance(formed, Formed)
    assert [one.slot for one in formed.workers] == [0, 1, 2]
    assert len(formed.servers) == 1
    assert formed.number == 1


@pytest.mark.parametrize(("least", "begins"), [(2, True), (3, False)])
def test_the_first_generation_begins_late_with_enough(least: int, begins: bool) -> None:
    job = Job(size=4, least=least, patience=60)
    job.workers(2)
    assert job.refuse(59) == 60
    formed, _ = job.generations.next(60)
    assert isinstance(formed, Formed if begins else Stop)
    if isinstance(formed, Stop):
        assert "only 2 workers are here, at least 3 (--min-workers)" in formed.why


def test_survivors_go_on_at_once_and_keep_their_order() -> None:
    job = Job(size=4)
    members = job.workers(4)
    assert job.form() == [0, 1, 2, 3]
    job.generations.leave(members[0])
    job.wait(members[3], now=5)
    assert job.refuse(5) == 65  # two are still in their step
    job.wait(members[1], members[2], now=6)
    assert job.form(6) == [1, 2, 3]
    assert [one.rank for one in members[1:]] == [0, 1, 2]


def test_a_worker_that_does_not_leave_its_step_is_left_behind() -> None:
    job = Job(size=3, patience=30)
    members = job.workers(3)
    job.form()
    job.wait(*members[:2], now=100)
    assert job.refuse(129) == 130
    formed, _ = job.generations.next(130)
    assert isinstance(formed, Formed)
    assert formed.evicted == (members[2],)
    assert len(formed.workers) == 2
    # It wakes up, and comes as anybody else.
    job.wait(members[2], now=140)
    assert job.generations.changes(140 + SETTLE_SECONDS) == (True, None)


def test_it_says_whom_it_waits_for() -> None:
    job = Job(size=3, servers=1, least=2)
    awaited = job.generations.awaited
    job.wait(job.come(0))
    assert awaited() == "2 more workers and 1 more server to come"
    members = job.workers(2)
    assert awaited() == "1 more server to come"
    server = job.come(server=True)
    job.wait(server)
    job.form()
    job.wait(members[0])
    assert awaited() == "rank 0 (worker 0), rank 2 (worker 1) to leave the step of the others"
    for member in job.generations.present:
        job.generations.leave(member) if member is not members[0] else None
    assert awaited() == "1 more worker to come"


def test_a_new_lobby_says_that_it_has_not_seen_all() -> None:
    job = Job(size=2)
    job.wait(job.come(0, generation=3, rank=0, size=2))
    assert job.generations.awaited() == "1 worker of it to connect to this lobby"


def test_too_few_workers_wait_for_others() -> None:
    job = Job(size=3, least=2, patience=60)
    members = job.workers(3)
    job.form()
    for member in members[:2]:
        job.generations.leave(member)
    job.wait(members[2], now=10)
    assert job.refuse(11) == 70
    job.wait(job.come(7), now=20)
    assert job.form(20) == [2, 7]
    job.generations.leave(members[2])
    last = next(iter(job.generations.present))
    job.wait(last, now=100)
    formed, _ = job.generations.next(160)
    assert isinstance(formed, Stop)


def test_a_job_begins_anew_only_so_often() -> None:
    job = Job(size=2, resets=1)
    members = job.workers(2)
    job.form()
    job.generations.leave(members[1])
    job.wait(members[0], now=10)
    assert job.form(10) == [0]
    # The generation goes on, although a worker has come that would be taken otherwise.
    late = job.come(5)
    job.wait(late, now=20)
    assert job.generations.last and job.generations.changes(30) == (False, None)
    assert job.refuse(30) is None
    # After a loss, none may follow.
    job.wait(members[0], now=40)
    formed, _ = job.generations.next(40)
    assert isinstance(formed, Stop) and "begun anew 1 time " in formed.why, formed


def test_newcomers_end_a_generation_when_they_have_settled() -> None:
    job = Job(size=2, most=3)
    members = job.workers(2)
    job.form()
    assert job.generations.changes(1) == (False, None)
    late = job.come(5)
    job.wait(late, now=10)
    assert job.generations.changes(10) == (False, 10 + SETTLE_SECONDS)
    assert job.generations.changes(10 + SETTLE_SECONDS) == (True, None)
    assert job.refuse(11) is None  # they go on until they leave together
    job.wait(*members, now=12)
    assert job.generations.changes(12) == (False, None)
    assert job.form(12) == [0, 1, 5]
    job.wait(job.come(6), now=13)
    assert job.generations.changes(99) == (False, None)  # there is no room


def test_a_server_that_comes_ends_a_generation_too() -> None:
    job = Job(size=1, servers=1)
    job.workers(1)
    server = job.come(server=True)
    job.wait(server)
    job.form()
    job.generations.leave(server)
    job.wait(job.come(server=True), now=1)
    assert job.generations.changes(1 + SETTLE_SECONDS) == (True, None)


def test_a_server_with_notice_ends_a_generation_and_is_not_waited_for() -> None:
    job = Job(size=2, servers=2)
    leaving, other = job.come(server=True), job.come(server=True)
    workers = job.workers(2)
    job.wait(leaving, other)
    job.form()
    assert job.generations.changes(1) == (False, None)
    leaving.leaves = True
    assert job.generations.changes(1) == (True, None)
    job.wait(*workers, other, now=2)
    formed, _ = job.generations.next(2)
    assert isinstance(formed, Formed) and formed.servers == (other,)
    assert job.generations.changes(3) == (False, None)  # although it is still connected


def test_servers_have_a_moment_to_see_the_end() -> None:
    job = Job(size=2, servers=1)
    members = job.workers(2)
    server = job.come(server=True)
    job.wait(server)
    job.form()
    job.generations.leave(members[1])
    job.wait(members[0], now=5)
    assert job.refuse(5) == 5 + SERVER_SECONDS
    job.wait(server, now=5.1)
    formed, _ = job.generations.next(5.1)
    assert isinstance(formed, Formed)
    assert formed.servers == (server,)


def test_without_survivors_it_begins_anew_with_those_that_come() -> None:
    job = Job(size=2)
    for member in job.workers(2):
        assert job.generations.number or job.form() == [0, 1]
        job.generations.leave(member)
    job.wait(job.come(0), now=10)
    assert job.refuse(10) == 10 + ANEW_SECONDS
    job.wait(job.come(1), now=11)
    assert job.form(11) == [0, 1]


def test_ranks_of_a_host_are_consecutive() -> None:
    job = Job(size=4)
    members = [job.come(slot, host) for slot, host in enumerate("abba")]
    job.wait(*members)
    assert job.form() == [0, 3, 1, 2]
    job.generations.leave(members[0])
    job.wait(*members[1:], job.come(0, "a"), now=1)
    assert job.form(1) == [3, 0, 1, 2]


def test_nobody_joins_a_training_that_has_ended() -> None:
    job = Job(size=2, least=2)
    members = job.workers(2)
    job.form()
    job.generations.finish(members[0])
    late = job.come(9)
    job.wait(late, now=1)
    assert job.generations.superfluous == [late]
    assert job.generations.changes(9) == (False, None)
    # The other one has lost the last step, and goes on alone whatever the fewest workers are.
    job.wait(members[1], now=2)
    assert job.form(2) == [1]


def test_a_lobby_that_was_started_again_learns_who_is_there() -> None:
    job = Job(size=3, patience=60)
    one = job.come(0, generation=7, rank=0, size=3)
    two = job.come(1, generation=7, rank=1, size=3)
    late = job.come(5)
    job.wait(late, now=1)
    assert job.refuse(2) is None
    job.wait(one, two, now=5)
    assert job.refuse(5) == 65  # the third one may still come back
    three = job.come(2, generation=7, rank=2, size=3)
    job.wait(three, now=6)
    formed, _ = job.generations.next(6)
    assert isinstance(formed, Formed)
    assert formed.number == 8
    assert [one.slot for one in formed.workers] == [0, 1, 2, 5]


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_it_forms_or_says_when(seed: int) -> None:
    """Each generation has enough distinct workers, and those that wait never wait for ever."""
    draw = random.Random(seed)
    least = draw.randint(1, 3)
    job = Job(size=draw.randint(least, 4), least=least, most=draw.randint(4, 6), patience=10)
    members: list[Member] = []
    now = 0.0
    for _ in range(120):
        now += draw.random()
        action = draw.random()
        if action < 0.35 and len(members) < 8:
            members.append(job.come(draw.randint(0, 9), draw.choice("abc")))
        elif action < 0.5 and members:
            gone = members.pop(draw.randrange(len(members)))
            job.generations.leave(gone)
        elif members:
            job.wait(draw.choice(members), now=now)
        formed, again = job.generations.next(now)
        if isinstance(formed, Formed):
            slots = [one.number for one in formed.workers]
            assert len(set(slots)) == len(slots) >= least
            assert len(slots) <= job.generations.rules.most
            assert [one.rank for one in formed.workers] == list(range(len(slots)))
            hosts = [host for host, _ in itertools.groupby(one.host for one in formed.workers)]
            assert len(set(hosts)) == len(hosts)
            assert not set(slots) & {one.number for one in formed.evicted}
        elif isinstance(formed, Stop):
            return
        elif again is not None:
            assert again > now
    # Nothing happens any more: those that wait get an answer in bounded time.
    for member in members:
        job.wait(member, now=now)
    for _ in range(10):
        formed, again = job.generations.next(now)
        if formed is not None or again is None:
            break
        now = again
    assert formed is not None or not members
