"""Threads of a rank sum a node's arrays correctly, with equal bits, and leave nothing behind."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers", "uneven-nodes"])
def test_the_bits_are_those_of_one_thread(layout: str) -> None:
    found = set()
    for threads in ("1", "3"):
        said = expect_success(
            run_job(LAYOUTS[layout], program("node_threads"), HERRING_NODE_THREADS=threads)
        )
        found |= set(re.findall(r"digest (\w+)", said))
    assert len(found) == 1, found


def test_there_is_none_where_every_core_has_a_rank() -> None:
    script = """
from node_helpers import helpers
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
herring.init()
herring.allreduce(np.ones(3_000_000, np.float32))
assert helpers() == 0
"""
    expect_success(run_job(["-n", "2"], script))


@pytest.mark.parametrize("how", ["forks", "dies", "leaves", "aborts"])
def test_whoever_ends_leaves_nothing_behind(how: str) -> None:
    job = run_job(
        ["-n", "3", "--keep-going"], program("node_threads_end"), HERRING_NODE_THREADS="3", HOW=how
    )
    ranks = {0, 2} if how == "dies" else {0, 1, 2}
    for rank in ranks:
        assert f"rank {rank} has ended" in job.stdout, job.stdout[-4000:]
        assert how == "forks" or f"rank {rank}: " in job.stdout, job.stdout[-4000:]
