"""Tests of `herring.arrays.apart`, whose calls may wait for one another."""

from __future__ import annotations

import threading

import pytest

from herring.arrays import apart as calls


@pytest.fixture
def apart() -> calls.Threads:
    return calls.Threads()


def test_calls_may_wait_for_later_ones(apart: calls.Threads) -> None:
    events = [threading.Event() for _ in range(5)]
    found = []

    def call(place: int) -> None:
        if place + 1 < len(events):
            assert events[place + 1].wait(600)
        found.append(place)
        events[place].set()

    for place in range(len(events)):
        apart.call(lambda place=place: call(place))
    assert events[0].wait(600)
    assert found == [4, 3, 2, 1, 0]


def test_an_idle_thread_takes_the_next_call(apart: calls.Threads) -> None:
    threads = set()
    for _ in range(20):
        done = threading.Event()
        apart.call(lambda done=done: (threads.add(threading.get_ident()), done.set()))
        assert done.wait(600)
        while not apart._idle:  # until the thread waits for the next call
            threading.Event().wait(0.001)
    assert len(threads) == 1


def test_without_more_threads_it_is_called_here(
    apart: calls.Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = []
    apart.call(lambda: found.append(threading.current_thread()))
    assert found == [threading.current_thread()]
    apart.wait(600)


def test_what_a_call_raises_does_not_end_the_thread(apart: calls.Threads) -> None:
    done = threading.Event()
    apart.call(lambda: 1 / 0)
    apart.call(done.set)
    assert done.wait(600)


def test_the_end_of_a_job_waits_for_calls_but_not_for_its_own(apart: calls.Threads) -> None:
    gate, ended, waited = threading.Event(), threading.Event(), threading.Event()

    def ends_the_job() -> None:
        with apart.not_waited_for():
            apart.wait(600)
        ended.set()

    apart.call(ends_the_job)
    assert ended.wait(600)
    apart.call(lambda: gate.wait(600))
    waiting = threading.Thread(target=lambda: (apart.wait(600), waited.set()))
    waiting.start()
    assert not waited.wait(0.2)
    gate.set()
    assert waited.wait(600)
    waiting.join()
