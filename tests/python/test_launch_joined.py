"""What `herring run` says of workers that have never joined the job."""

from __future__ import annotations

import sys
import time

import pytest

from herring.rendezvous.joined import JoinNotices, tell
from launched import run


def test_those_who_have_joined_are_heard() -> None:
    job = f"run-test-{time.time_ns()}"
    tell(job, 1)  # nobody listens
    box = JoinNotices(job)
    second = JoinNotices(job)
    assert second.socket is None
    tell(job, 3)
    tell("somebody else's", 4)
    assert box.ranks() == [3]
    assert box.ranks() == []
    assert second.ranks() == []
    box.close()
    tell(job, 1)


RANK_0_JOINS = "import herring, os; os.environ['RANK'] == '0' and herring.init()"


def test_a_job_that_nobody_joined_says_so() -> None:
    done = run("-n", "2", "--", "true")
    assert done.returncode == 0
    assert "none of the 2 workers has called herring.init()" in done.stderr
    done = run("-n", "2", "--horovod", "--", "true")
    assert "none of the 2 workers has called hvd.init()" in done.stderr
    # One worker has nobody to average with, and a failure says enough.
    assert run("-n", "1", "--", "true").stderr == ""
    assert "herring.init()" not in run("-n", "2", "--", "false").stderr


def test_a_job_that_all_have_joined_says_nothing() -> None:
    pytest.importorskip("herring._core")
    # A process on the way makes no difference.
    code = "import herring; herring.init(); herring.barrier()"
    command = f"{sys.executable} -c '{code}'; true"
    done = run("-n", "2", "--require-init", "--", "bash", "-c", command)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_the_option_it_is_a_failure_at_once() -> None:
    pytest.importorskip("herring._core")
    done = run("-n", "2", "--require-init", "--", sys.executable, "-c", RANK_0_JOINS)
    assert done.returncode == 3
    assert "rank 1" in done.stderr
    assert "without having called herring.init() (--require-init)" in done.stderr
    assert run("-n", "1", "--require-init", "--", "true").returncode == 3
