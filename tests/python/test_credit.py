"""The credit of a job's ranks, with which they push to servers."""

from __future__ import annotations

from jobs import expect_success, program, run_job


def test_ranks_learn_the_credit_of_servers_to_which_rank_0_pushes_nothing() -> None:
    layout = ["-n", "4", "--nodes", "2", "--servers", "2"]
    output = expect_success(run_job(layout, program("credit_of_all")))
    assert output.count(" bytes after ") == 4, output
