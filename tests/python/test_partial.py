"""Partial all-reduces in real jobs: equal bytes for all, no lost data, no wait for a dead rank."""

from __future__ import annotations

import pathlib
import re
import types
from pathlib import Path

import pytest

from herring.partial import RoundStatistics
from jobs import expect_success, program, run_job

LAYOUTS = {
    "one-node": ["-n", "4"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated": ["-n", "3", "--nodes", "3"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_applied_is_what_was_produced(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("partial_sums")))


def test_rounds_arrive_in_order_from_several_proxies_and_flows() -> None:
    layout = LAYOUTS["dedicated"]
    expect_success(run_job(layout, program("partial_sums"), HERRING_PROXIES="2", HERRING_FLOWS="2"))


def test_replicas_that_differ_fail_the_job() -> None:
    job = run_job(
        ["-n", "2"],
        """
        from herring.partial import PartialReduction
        herring.init()
        series = PartialReduction(8, "float32", sync="majority")
        work = np.zeros(8, np.float32)
        series.allreduce(work)
        series.digest(100 + herring.rank())
        try:
            while True:
                series.allreduce(work)
        except herring.MismatchError as error:
            assert "differ after 1 round:" in str(error), error
            print("told", flush=True)
        from support import stay_until_all_know
        stay_until_all_know(herring.rank(), range(2))
    """,
    )
    assert job.stdout.count("told") == 2, job.stdout[-4000:]


def test_without_staleness_it_is_the_full_all_reduce_bit_for_bit() -> None:
    expect_success(
        run_job(
            ["-n", "3", "--nodes", "3", "--servers", "3"],
            """
        herring.init()
        rank = herring.rank()
        for name, elements in [("small", 900), ("large", 90_000)]:
            for kind, sync in [("q", herring.Quorum(3)), ("tau", herring.Quorum(1, staleness=0))]:
                for step in range(3):
                    mine = np.random.default_rng(9 * step + rank).standard_normal(elements)
                    mine = mine.astype(np.float32)
                    full = herring.allreduce(mine.copy())
                    partial = herring.allreduce(mine.copy(), sync=sync, name=name + kind)
                    assert (full.view(np.uint32) == partial.view(np.uint32)).all(), (name, kind)
    """,
        )
    )


def test_a_recorded_list_of_contributors_gives_the_same_bits() -> None:
    # Contributions are functions of rank and number. The program sums the listed ones again in the
    # order of ranks, each rank's own contributions first.
    expect_success(
        run_job(
            ["-n", "5"],
            program("partial_recorded"),
        )
    )


@pytest.mark.parametrize("elements", [512, 100_000])
def test_a_killed_worker_is_reported_and_no_longer_waited_for(elements: int) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        program("partial_killed"),
        ELEMENTS=str(elements),
    )
    told = re.findall(r"survivor \d flushed; rank 2 is gone: 1[01] contributions", job.stdout)
    assert len(told) == 3, job.stdout[-6000:]


def test_a_slow_worker_is_waited_for_only_when_its_gradient_gets_too_old(tmp_path: Path) -> None:
    expect_success(run_job(["-n", "3"], program("partial_slow"), FOLDER=str(tmp_path)))


def test_bad_input_is_named() -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            program("partial_bad_input"),
        )
    )


def test_what_is_refused_contributes_nothing() -> None:
    expect_success(run_job(["-n", "3"], program("partial_refused")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_series_goes_on_after_a_call_that_timed_out(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("partial_timed_out")))


def test_statistics_are_drawn(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    statistics = RoundStatistics()
    for late in range(5):
        contributors = [
            types.SimpleNamespace(rank=rank, staleness=late % 2, waited=rank * 0.01 - 0.02)
            for rank in range(4)
        ]
        statistics.add(
            types.SimpleNamespace(contributors=contributors, active=3, queued=0.001, lost=[])
        )
    assert "rank 0 was late 5 times, by 20.0 ms" in statistics.summary()
    plot = tmp_path / "rounds.png"
    statistics.plot(plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
