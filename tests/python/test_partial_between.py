"""Partial all-reduces between workers, in real jobs: what is given is taken once, and no hang."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import expect_success, program, run_job

LAYOUTS = {
    "alone": ["-n", "1"],
    "one-node": ["-n", "4"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated": ["-n", "3", "--nodes", "3"],
    "uneven": ["-n", "5", "--nodes", "2"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_applied_is_what_was_produced(layout: str) -> None:
    choice = str(list(LAYOUTS).index(layout))
    expect_success(run_job(LAYOUTS[layout], program("partial_between"), CHOICE=choice))


def test_bad_input_is_named_before_anything_is_contributed() -> None:
    expect_success(run_job(["-n", "3"], program("partial_between_bad_input")))


@pytest.mark.parametrize("sync", ["solo", "majority"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("dies", "PeerLostError: .*rank 1 .*(is lost|SIGKILL)"),
        ("leaves", "PeerLostError: .*rank 1 .*has left"),
        ("stays away", "TimeoutError: .*rank 1 "),
    ],
)
def test_a_rank_that_is_gone_is_named_on_all_others(
    how: str, said: str, sync: str, tmp_path: Path
) -> None:
    settings = {"HERRING_TIMEOUT": "3"} if how == "stays away" else {}
    elements = "8" if sync == "solo" else "40000"
    job = run_job(
        ["-n", "4", "--nodes", "2", "--keep-going"],
        program("partial_between_ends"),
        HOW=how,
        SYNC=sync,
        ELEMENTS=elements,
        FOLDER=str(tmp_path),
        **settings,
    )
    told = re.finditer(rf"rank ([023]) is told by {said}", job.stdout)
    assert sorted(one[1] for one in told) == ["0", "2", "3"], job.stdout[-6000:]


@pytest.mark.usefixtures("runtime_folder")
@pytest.mark.parametrize("sync", ["solo", "majority"])
def test_an_elastic_job_goes_on_after_a_death(sync: str, tmp_path: Path) -> None:
    script = program("partial_between_elastic", str(tmp_path), sync)
    output = expect_success(run_job(["--elastic", "-n", "3"], script))
    assert (tmp_path / "died").exists() and "generation 1" not in output.split("is done", 1)[1]


def test_replicas_that_differ_fail_on_all_ranks() -> None:
    job = run_job(
        ["-n", "3"],
        """
        from herring.partial import PartialReduction
        herring.init()
        series = PartialReduction(8, "float32", sync="solo", algorithm="doubling")
        work = np.zeros(8, np.float32)
        series.allreduce(work)
        series.digest(7 + herring.rank() // 2)
        try:
            while True:
                series.allreduce(work)
        except herring.MismatchError as error:
            assert "differ after 1 round" in str(error) and "rank 2" in str(error), error
            print("told", flush=True)
        assert (herring.allreduce(np.ones(3), "sum") == 3).all()
    """,
    )
    assert expect_success(job).count("told") == 3, job.stdout[-4000:]
