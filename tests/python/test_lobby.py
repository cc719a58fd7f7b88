"""The lobby of an elastic job and its members: in this process, over real connections."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from herring import _core
from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    HerringError,
    PeerLostError,
    TimeoutError,
)
from herring.lobby import connection, service, versions
from herring.lobby.connection import Connection, Generation, MemberLeft, TrainingEnded
from herring.lobby.generations import Rules
from herring.lobby.service import Lobby

SECRET = secrets.token_bytes(32)
HOST = "127.0.0.1"


class House:
    """A lobby, and those that wait in it on threads of their own."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.pool = ThreadPoolExecutor(16)
        self.connections: list[Connection] = []
        self.lobby: Lobby | None = None
        self.port = 0

    def open(self, **rules: float) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        chosen = Rules(**rules)  # type: ignore[arg-type]
        self.lobby = Lobby(listener, SECRET, chosen, lambda _, text: self.said.append(text))

    def close(self) -> None:
        assert self.lobby is not None
        self.lobby.close()

    def come(self, slot: int, server: bool = False, patience: float = 20.0) -> Connection:
        one = Connection(HOST, self.port, SECRET, slot, server, patience)
        self.connections.append(one)
        return one

    def wait(self, one: Connection, address: str = "") -> Future[Generation]:
        return self.pool.submit(one.next_generation, address)

    def all_wait(self, *members: Connection) -> list[Generation]:
        waits = [self.wait(one, f"1.2.3.4:{index}") for index, one in enumerate(members)]
        return [wait.result(600) for wait in waits]

    def train(self, *members: Connection) -> list[int]:
        """Lets members make steps, and returns the commits at which they left.

        Each step ends when all have begun it, as with gradients; the steps of ranks drift apart.
        """
        meeting = threading.Barrier(len(members))

        def steps(one: Connection, pause: float) -> int:
            for step in range(1, 100_000):
                meeting.wait(600)  # a rank passes when all have come: it is never two steps ahead
                time.sleep(pause)
                if one.committed(step):
                    return step
            raise AssertionError("the generation has not ended")

        pauses = [0.0, 0.001, 0.0, 0.002]
        ends = [self.pool.submit(steps, one, pause) for one, pause in zip(members, pauses)]
        return [one.result(600) for one in ends]


@pytest.fixture
def house() -> Iterator[House]:
    found = House()
    yield found
    for one in found.connections:
        one.close()
    found.close()
    found.pool.shutdown()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_workers_and_a_server_learn_of_their_generation(house: House) -> None:
    house.open(size=2, servers=1)
    members = [house.come(1), house.come(0), house.come(0, server=True)]
    first, second, server = house.all_wait(*members)
    assert (first.rank, second.rank, server.rank) == (1, 0, -1)
    assert {one.size for one in (first, second, server)} == {2}
    assert {one.servers for one in (first, second, server)} == {1}
    assert first.address == second.address == server.address == "1.2.3.4:1"
    assert first.secret == second.secret == server.secret != SECRET
    assert house.said == []
    # The next one has another secret.
    again = house.all_wait(*members)
    assert [one.number for one in again] == [2, 2, 2]
    assert again[0].secret not in (SECRET, first.secret)


def test_the_others_go_on_when_one_is_gone(house: House) -> None:
    house.open(size=3)
    members = [house.come(slot) for slot in range(3)]
    house.all_wait(*members)
    members[0].close()
    waits = [house.wait(one) for one in members[1:]]
    assert [wait.result(600).rank for wait in waits] == [0, 1]
    until(lambda: house.said == ["generation 2 of the elastic job begins with 2 workers"])


def test_a_start_ends_early_if_a_worker_is_lost(house: House) -> None:
    """The loss may come before the start begins, and a later generation is whole again."""
    house.open(size=3)
    members = [house.come(slot) for slot in range(3)]
    house.all_wait(*members)
    members[2].close()
    until(lambda: members[0].broken and members[1].broken)
    with members[0].starting(), pytest.raises(HerringError):
        _core.Job.start(
            rank=1,
            size=2,
            local_rank=-1,
            local_size=-1,
            servers=0,
            rendezvous=f"{HOST}:9",  # where nobody listens
            rendezvous_fd=-1,
            host_id="a",
            secret=SECRET,
            settings={"rank": "1", "size": "2", "connect_timeout": "50"},
        )
    waits = [house.wait(one) for one in members[:2]]
    assert {wait.result(600).size for wait in waits} == {2}
    assert not members[0].broken


def test_all_leave_at_the_same_commit_for_a_newcomer(house: House) -> None:
    house.open(size=4)
    members = [house.come(slot) for slot in range(4)]
    house.all_wait(*members)
    late = house.wait(house.come(9))
    assert len(set(house.train(*members))) == 1
    assert {one.number for one in house.all_wait(*members)} == {2}
    assert late.result(600).size == 5


def test_the_last_generation_does_not_end_for_a_newcomer(house: House) -> None:
    house.open(size=2, resets=0)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    house.wait(house.come(9))
    vain = "worker 9 waits in vain: the job may not begin anew for it (--reset-limit)"
    until(lambda: house.said == [vain])
    assert not members[0].committed(1)


@pytest.mark.parametrize("leavers", [[1], [0], [0, 2], [0, 1, 2, 3]])
def test_some_leave_between_two_steps(house: House, leavers: list[int]) -> None:
    """All end the generation at the same commit. No step of the others fails."""
    house.open(size=4)
    members = [house.come(slot) for slot in range(4)]
    house.all_wait(*members)
    for one in leavers:
        members[one].leave()
    ends = house.train(*members)
    assert len(set(ends)) == 1 and ends[0] <= 30
    for one in leavers:
        with pytest.raises(MemberLeft):
            members[one].next_generation()
        members[one].close()
    others = [one for index, one in enumerate(members) if index not in leavers]
    assert [one.size for one in house.all_wait(*others)] == [len(others)] * len(others)
    assert sum(said.endswith(" leaves the elastic job") for said in house.said) == len(leavers)


def test_a_worker_leaves_before_a_generation_begins(house: House) -> None:
    house.open(size=2)
    members = [house.come(slot) for slot in range(3)]
    wait = house.wait(members[2])
    until(lambda: members[2]._waits_at is not None)
    members[2].leave()
    with pytest.raises(MemberLeft):
        wait.result(600)
    members[2].close()
    until(lambda: house.said == ["worker 2 leaves the elastic job"])
    assert {one.size for one in house.all_wait(*members[:2])} == {2}


def test_too_few_are_left_by_one_that_leaves(house: House) -> None:
    house.open(size=2, least=2, patience=2)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    members[0].leave()
    assert len(set(house.train(*members))) == 1
    members[0].close()
    with pytest.raises(PeerLostError, match=r"only 1 worker is left, at least 2 \(--min-workers"):
        house.wait(members[1]).result(600)


def test_a_lobby_that_was_started_again_learns_who_leaves(house: House) -> None:
    house.open(size=2)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    house.close()
    members[1].leave()  # which nobody hears
    house.open(size=2)
    assert len(set(house.train(*members))) == 1
    members[1].close()
    assert house.wait(members[0]).result(600).size == 1


def test_members_learn_that_the_job_is_being_ended(house: House) -> None:
    house.open(size=1)
    assert house.lobby is not None
    first = house.come(0)
    house.lobby.end()
    assert first.job_ends.wait(600)
    assert house.come(1).job_ends.wait(600)


def test_another_version_is_refused_on_both_sides(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.open(size=1)
    mine = rf"Herring .*, protocol {versions.PROTOCOL}"
    both = rf"\(Herring 9.8, protocol 7\) than .* \({mine}\): install the same"
    other = {"protocol": 7, "herring": "9.8"}
    own = Connection._hello
    monkeypatch.setattr(Connection, "_hello", lambda one: {**own(one), **other})
    stranger = house.come(0)
    until(lambda: len(house.said) > 0)
    assert re.search(f"a process that has come has another version .*{both}", house.said[0])
    stranger.close()
    monkeypatch.setattr(Connection, "_hello", own)
    monkeypatch.setattr(versions, "own", lambda: other)  # what the lobby says
    with pytest.raises(ConfigurationError, match=f"the lobby of the elastic job at .*{both}"):
        house.come(1)


def test_the_first_does_not_wait_for_one_that_is_gone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_COMMIT_SECONDS", 600.0)
    house.open(size=3)
    members = [house.come(slot) for slot in range(3)]
    house.all_wait(*members)
    house.wait(house.come(9))
    until(lambda: members[0]._heard.keys() == {1, 2})
    members[0]._heard.clear()  # as if both had not heard of it yet
    members[2].close()
    with pytest.raises(PeerLostError, match="only 0 of 2 other workers have heard"):
        members[0].committed(1)


def test_workers_that_do_not_wait_for_each_other_choose_again(house: House) -> None:
    house.open(size=2)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    late = house.wait(house.come(9))
    ahead = 100
    assert not members[1].committed(ahead)
    step = 0

    def slow() -> None:
        nonlocal step
        while not members[0].committed(step):
            step += 1

    first = house.pool.submit(slow)
    while not members[1].committed(ahead):
        if first.done() or ahead < step + 3:
            ahead += 1
    first.result(600)
    assert step >= 100
    house.all_wait(*members)
    assert late.result(600).rank == 2


def test_a_commit_without_newcomers_sends_nothing(house: House) -> None:
    house.open(size=1)
    one = house.come(0)
    house.all_wait(one)
    sent: list[object] = []
    one._send = sent.append  # type: ignore[method-assign]
    assert not any(one.committed(step) for step in range(1, 1000))
    assert sent == []


def test_a_lobby_that_was_started_again_is_found(house: House) -> None:
    house.open(size=2)
    members = [house.come(slot) for slot in range(2)]
    assert [one.number for one in house.all_wait(*members)] == [1, 1]
    house.close()
    house.open(size=2)
    again = house.all_wait(*members)
    assert [one.number for one in again] == [2, 2]
    assert [one.rank for one in again] == [0, 1]


def test_members_that_wait_are_found_by_the_next_lobby(house: House) -> None:
    house.open(size=2)
    first = house.come(0)
    wait = house.wait(first)
    until(lambda: first._waits_at is not None)
    house.close()
    house.open(size=2)
    second = house.wait(house.come(1))
    assert wait.result(600).rank + second.result(600).rank == 1


def test_a_lobby_that_stays_away_is_an_error(house: House) -> None:
    house.open(size=2)
    first = house.come(0, patience=2)
    wait = house.wait(first)
    until(lambda: first._waits_at is not None)
    house.close()
    with pytest.raises(TimeoutError, match=r"lost .* cannot be reached since 2 s"):
        wait.result(600)


def test_too_few_workers_end_the_job(house: House) -> None:
    house.open(size=2, least=2, patience=2)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    members[1].close()
    with pytest.raises(PeerLostError, match=r"only 1 worker is left, at least 2 \(--min-workers"):
        house.wait(members[0]).result(600)
    assert house.lobby is not None
    assert "only 1 worker" in house.lobby.wait()


def test_it_says_whom_it_waits_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRST_REMINDER", 0.05)
    house.open(size=2)
    wait = house.wait(house.come(0))
    until(lambda: len(house.said) == 2)
    for said in house.said:
        assert re.fullmatch(r"the elastic job has waited \S+ m?s for 1 more worker to come", said)
    house.wait(house.come(1))
    assert wait.result(600).size == 2


def test_who_comes_after_the_end_is_told_so(house: House) -> None:
    house.open(size=1)
    one = house.come(0)
    house.all_wait(one)
    one.finished()
    with pytest.raises(TrainingEnded):
        house.wait(house.come(1)).result(600)


def test_who_does_not_leave_its_step_is_left_behind(house: House) -> None:
    house.open(size=2, patience=2)
    members = [house.come(slot) for slot in range(2)]
    house.all_wait(*members)
    assert house.wait(members[0]).result(600).size == 1
    until(lambda: "without rank 1 (worker 1)" in "".join(house.said))
    # It connects again by itself, and waits as a newcomer.
    late = house.wait(members[1])
    until(lambda: members[0].committed(members[0]._commits + 1))
    assert house.wait(members[0]).result(600).size == 2
    assert late.result(600).rank == 1


def test_a_flood_of_strangers_keeps_nobody_out(house: House) -> None:
    house.open(size=2)
    over = threading.Event()
    began = threading.Event()

    def flood() -> int:
        """Keeps more connections open than the lobby has room for."""
        held: list[socket.socket] = []
        count = 0
        while not over.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((HOST, house.port), 5))
                held[-1].send(b"GET / HTTP/1.1\r\n" if count % 2 else b"HRLOBBY\n" + bytes(32))
                count += 1
            while len(held) > 400:
                began.set()
                held.pop(0).close()
        for one in held:
            one.close()
        return count

    strangers = house.pool.submit(flood)
    assert began.wait(600)
    members = [house.come(slot) for slot in range(2)]
    assert {one.size for one in house.all_wait(*members)} == {2}
    over.set()
    assert strangers.result(600) > 400


def test_strangers_get_nothing(house: House) -> None:
    house.open(size=1)
    with pytest.raises(AuthenticationError):
        Connection(HOST, house.port, b"another secret of some length..", 0, False, 60.0)
    one = house.come(0)
    for message in ({}, {"kind": "wait"}, {"kind": 7}, {"kind": "switch", "at": "x"}, {"kind": []}):
        with contextlib.suppress(OSError):
            one._channel.send(message)
    until(lambda: house.wait(house.come(1)).result(600).size >= 1)
