"""Series whose ranks flush after different numbers of rounds: all end alike, nothing is lost."""

from __future__ import annotations

import pathlib
import re

import pytest

from jobs import expect_success, program, run_job

LAYOUTS = {
    "one-node": (["-n", "4"], {}),
    "colocated": (["-n", "4", "--nodes", "4"], {}),
    "dedicated": (["-n", "4", "--nodes", "2", "--servers", "2"], {"HERRING_PROXIES": "2"}),
    "proxies": (
        ["-n", "4", "--nodes", "4", "--servers", "1"],
        {"HERRING_PROXIES": "4", "HERRING_FLOWS": "2"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_make_different_numbers_of_steps_end_alike(layout: str) -> None:
    options, environment = LAYOUTS[layout]
    script = program("flush_uneven")
    expect_success(run_job(options, script, **environment))


def test_equally_many_rounds_before_it_make_it_a_full_round() -> None:
    expect_success(
        run_job(
            ["-n", "4", "--nodes", "2", "--servers", "2"],
            program("flush_full_round"),
        )
    )


def test_series_of_many_names_do_not_stay_in_memory() -> None:
    expect_success(run_job(["-n", "2"], program("flush_many_names")))


def test_a_replay_repeats_it(tmp_path: pathlib.Path) -> None:
    script = program("flush_replayed")
    expect_success(
        run_job(
            ["-n", "4", "--nodes", "2", "--servers", "2"],
            script,
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


@pytest.mark.parametrize("elements", [512, 100_000])
@pytest.mark.parametrize("how", ["kill", "leave"])
def test_nobody_waits_for_one_that_is_gone_before_it_flushed(elements: int, how: str) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        program("flush_lost_rank"),
        ELEMENTS=str(elements),
        HOW=how,
    )
    told = re.findall(r"survivor \d saw (\d+) rounds", job.stdout)
    assert len(told) == 3 and len(set(told)) == 1, job.stdout[-6000:]


@pytest.mark.parametrize("elements", [512, 100_000])
def test_the_others_go_on_when_one_that_has_flushed_dies(elements: int) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        program("flush_then_death"),
        ELEMENTS=str(elements),
    )
    told = re.findall(r"survivor \d saw (\d+) rounds", job.stdout)
    assert len(told) == 3 and len(set(told)) == 1, job.stdout[-6000:]


def test_one_that_never_flushes_is_named() -> None:
    job = run_job(
        ["-n", "3"],
        program("flush_missing"),
        HERRING_TIMEOUT="10",
        HERRING_WARN_AFTER="1",
    )
    assert job.stdout.count("told") == 3, job.stdout[-4000:]
    assert "has waited" in job.stdout


def test_one_that_flushes_and_does_not_take_the_results_is_named() -> None:
    job = run_job(
        ["-n", "3"],
        """
        from herring.partial import PartialReduction
        herring.init()
        series = PartialReduction(8, "float32", sync="solo", name="a")
        array = np.ones(8, np.float32)
        try:
            if herring.rank() == 2:
                series.contribute(array, last=True)
                herring.barrier(timeout=600)
            for _ in range(1000):
                series.allreduce(array)
        except herring.TimeoutError as error:
            assert "s for rank 2 (" in str(error), error
            print(f"told after {series.rounds}", flush=True)
    """,
        HERRING_TIMEOUT="10",
        HERRING_WARN_AFTER="1",
    )
    # A staleness of 4 limits how many rounds complete without the rank.
    told = [int(rounds) for rounds in re.findall(r"told after (\d+)", job.stdout)]
    assert len(told) == 3 and max(told) <= 6, job.stdout[-4000:]


def test_flushes_that_are_repeated_or_too_many() -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            program("flush_repeated"),
        )
    )
