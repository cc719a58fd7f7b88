"""When `herring run` starts a dedicated server again, without any process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from herring.launch import restarts
from herring.launch.children import Child, Children
from herring.launch.options import Elastic, Task
from herring.launch.processes import Processes
from herring.launch.restarts import Restarts

ON = {"HERRING_FAILOVER": "true"}


class Fake:
    """A job of two workers and some servers whose processes are only on paper."""

    def __init__(
        self, servers: int = 2, nodes: int = 1, elastic: Elastic | None = None, **environment: str
    ) -> None:
        self.children = Children(Processes())
        for number in range(2 + servers):
            rank = number if number < 2 else None
            name = f"rank {number}" if number < 2 else f"server {number - 2}"
            self.children.add(Child(Task(name, SimpleNamespace(), rank, number, {}), pid=number))
        self.ending = SimpleNamespace(begun=False)
        self.started: list[Task] = []
        self.said: list[str] = []
        layout = SimpleNamespace(servers=[None] * servers, workers=[(None, 2)])
        options = SimpleNamespace(layout=layout, nodes=nodes, workers=2, elastic=elastic)
        self.restarts = Restarts(
            options,
            {**ON, **environment},
            self.children,
            self.ending,
            self._start,
            lambda _, text: self.said.append(text),
            lambda: any(child.ended and child.code == 0 for child in self.children),
            lambda child: child.joined,
            self.children.remove,
        )

    def _start(self, task: Task) -> None:
        self.started.append(task)
        self.children.add(Child(task, pid=task.number))

    def end(self, number: int, code: int) -> bool:
        child = self.children.get(number)
        child.end(code)
        return self.restarts.on_end(child)


@pytest.fixture(autouse=True)
def standing_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the time stand still, except in the test that starts a process."""
    if "tmp_path" not in request.fixturenames:
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)


def test_a_server_that_is_killed_gets_a_successor_at_once() -> None:
    job = Fake()
    assert job.end(2, -signal.SIGKILL)
    assert job.children.get(2).spared
    job.restarts.on_time(time.monotonic())
    assert [(task.name, task.number) for task in job.started] == [("server 0", 4)]
    assert job.said == [
        "server 0 (process 2) was killed by SIGKILL (signal 9); starting another one in its place"
    ]
    job.restarts.on_time(time.monotonic() + 100)
    assert len(job.started) == 1


def test_servers_that_have_died_are_not_remembered_forever() -> None:
    job = Fake()
    number, now = 2, time.monotonic()
    for _ in range(100):
        assert job.end(number, -signal.SIGKILL)
        now += 20
        job.restarts.on_time(now)
        number = job.started[-1].number
    assert len(job.started) == 100
    numbers = [child.task.number for child in job.children]
    assert numbers == [0, 1, 3, *range(number - 17, number + 1)], "the latest ones stay"
    assert not job.children.get(number).ended


class Clock:
    """Stands for the module `time` of the launcher."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(restarts, "time", found)
    return found


def pauses(clock: Clock, lives: list[float], code: int = -signal.SIGSEGV) -> list[float]:
    """Returns how long a server that dies after each of these lives is not there."""
    job = Fake()
    number = 2
    found = []
    for life in lives:
        clock.now += life
        died = clock.now
        assert job.end(number, code)
        while not _is_due(job, clock.now):
            clock.now += 0.25
        found.append(clock.now - died)
        number = job.started[-1].number
    return found


def test_pauses_double_up_to_a_limit(clock: Clock) -> None:
    assert pauses(clock, [99] + [0] * 7) == [0, 0.5, 1, 2, 4, 8, 10, 10]


def test_a_server_that_has_served_is_started_again_at_once(clock: Clock) -> None:
    assert pauses(clock, [99, *[6] * 10]) == [0] * 11
    # Also after others that have not.
    assert pauses(clock, [99, 0, 0, 0, 5, 0]) == [0, 0.5, 1, 2, 0, 0.5]


def test_the_time_for_which_a_server_lived_is_part_of_the_pause(clock: Clock) -> None:
    assert pauses(clock, [99, 0.25, 0.25, 0.25, 3]) == [0, 0.25, 0.75, 1.75, 1]


def _is_due(job: Fake, at: float) -> bool:
    before = len(job.started)
    job.restarts.on_time(at)
    return len(job.started) > before


def test_an_error_may_be_that_of_a_job_which_ends() -> None:
    job = Fake()
    assert job.end(3, 1)
    job.restarts.on_time(time.monotonic())
    assert not job.started
    job.ending.begun = True
    job.restarts.on_time(time.monotonic() + 10)
    assert not job.started
    job.ending.begun = False
    job.restarts.on_time(time.monotonic() + 10)
    assert [task.name for task in job.started] == ["server 1"]


@pytest.mark.parametrize(
    ("layout", "environment"),
    [({}, {"HERRING_FAILOVER": "false"}), ({"servers": 1}, {})],
    ids=["off", "no-other-server"],
)
def test_no_successor(layout: dict[str, int], environment: dict[str, str]) -> None:
    job = Fake(**layout, **environment)
    assert not job.end(2, -signal.SIGKILL)
    assert not job.children.get(2).spared
    assert job.restarts.next_deadline() is None


def test_a_colocated_server_stands_in_for_the_only_dedicated_one() -> None:
    assert Fake(servers=1, nodes=2).end(2, -signal.SIGKILL)


def test_no_successor_after_the_workers() -> None:
    job = Fake()
    for rank in range(2):
        job.children.get(rank).end(0)
    assert not job.end(2, -signal.SIGKILL)


def test_the_end_of_a_server_that_was_replaced_is_no_failure() -> None:
    job = Fake()
    job.children.get(2).replaced = True
    assert job.end(2, 1)
    job.restarts.on_time(time.monotonic() + 10)
    assert not job.started


def test_workers_of_an_elastic_job_get_successors_until_they_die_too_soon_too_often(
    clock: Clock,
) -> None:
    job = Fake(servers=0, elastic=Elastic(restarts=2))
    number = 1
    for _ in range(2):
        assert job.end(number, 1)
        assert job.restarts.pending
        clock.now += 1
        job.restarts.on_time(clock.now)
        number = job.started[-1].number
        assert not job.restarts.pending
    assert job.end(number, 1)  # the job goes on without it
    job.restarts.on_time(clock.now + 100)
    assert len(job.started) == 2
    assert "is not started again: it died soon after its start 3 times" in job.said[-1]
    assert job.end(0, -signal.SIGKILL)  # the other one has its own count
    job.restarts.on_time(clock.now)
    assert job.started[-1].name == "rank 0"


def test_a_worker_that_has_left_gets_no_successor() -> None:
    job = Fake(servers=0, elastic=Elastic())
    assert job.end(1, 75)
    assert not job.restarts.pending
    assert job.said[-1].endswith("has left the job, as it was told to, and is not started again")
    assert not Fake().end(1, 75)  # a failure as any


def test_when_the_training_has_ended_nobody_gets_a_successor() -> None:
    job = Fake(servers=0, elastic=Elastic())
    assert job.end(0, 1)
    job.restarts.on_time(time.monotonic())
    late = job.started[-1].number
    assert not job.end(1, 0)
    assert job.end(late, 1)  # it had not taken part
    assert not job.restarts.pending


def test_a_worker_that_took_part_and_fails_at_the_end_fails_the_job() -> None:
    job = Fake(servers=0, elastic=Elastic())
    job.children.note_joined([0, 1])
    assert not job.end(1, 0)
    assert not job.end(0, 1)


def test_nothing_is_started_again_on_a_host_that_is_lost() -> None:
    job = Fake(servers=0, elastic=Elastic())
    host = SimpleNamespace(host=SimpleNamespace(name="far"))
    job.children.get(1).connection = host
    assert job.end(0, -signal.SIGKILL) and job.end(1, -signal.SIGKILL)
    job.restarts.lose_host(host)
    job.restarts.on_time(time.monotonic())
    assert [task.name for task in job.started] == ["rank 0"]


def test_a_worker_is_started_again_although_no_other_is_left(tmp_path: Path) -> None:
    # Servers that have to end end at once, and whatever is left then is stopped.
    code = """
from herring.command import cli
from herring.launch import ending
ending._SERVER_SECONDS = 0
raise SystemExit(cli.main())
"""
    died = tmp_path / "died"
    script = f"if test -e {died}; then echo again; else touch {died}; kill -9 $$; fi"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--elastic", "-n", "1", "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[0] again\n"), done.stdout + done.stderr
