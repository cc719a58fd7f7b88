"""Ranks that `multiprocessing` has forked leave their job as interpreters do."""

from __future__ import annotations

import re

import pytest

from jobs import program, run_job


@pytest.mark.parametrize("layout", [["-n", "2"], ["-n", "2", "--nodes", "2"]])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("returns", "rank 1 hears: .*rank 0 .* left the job"),
        ("raises", "rank 1 hears: .*rank 0 .* left the job"),
        ("thread", "all are there"),
    ],
)
def test_children_that_multiprocessing_forks_leave_at_their_end(
    how: str, said: str, layout: list[str]
) -> None:
    job = run_job([*layout, "--keep-going"], program("forked_ranks", how), HERRING_TIMEOUT="600")
    assert re.search(said, job.stdout), job.stdout
    assert (job.returncode == 0) == (how != "raises"), job.stdout
