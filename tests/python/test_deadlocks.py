"""A deadlock that is certain ends the job after some seconds, and nothing else does."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job

ONE_NODE = ["-n", "2"]
OTHER_NODES = ["-n", "2", "--nodes", "2"]
TWO_SERVERS = [*OTHER_NODES, "--servers", "2"]
CIRCLE = ["-n", "3", "--nodes", "2"]

BEGIN = "and no thread is left that could end a wait: rank 0 waits in"
CALLS = f"all 2 ranks wait, {BEGIN} allreduce 'a' ("
MESSAGES = f"all 3 ranks wait, {BEGIN} receive 'receive 1' (rank 1) ("
ROUNDS = f"all 2 ranks wait, {BEGIN} 'p' (round 0) ("
GROUPS = f"all 3 ranks wait, {BEGIN} barrier 'group.0.barrier.0' of group 'group.0' (ranks 0-1) ("


@pytest.mark.parametrize(
    ("layout", "where", "said"),
    [
        pytest.param(ONE_NODE, "calls", CALLS, id="calls"),
        pytest.param(ONE_NODE, "threads", CALLS, id="threads"),
        pytest.param(ONE_NODE, "native", CALLS, id="native"),
        pytest.param(ONE_NODE, "foreign", CALLS, id="foreign"),
        pytest.param(ONE_NODE, "rounds", ROUNDS, id="rounds"),
        pytest.param(TWO_SERVERS, "calls", CALLS, id="calls-two-servers"),
        pytest.param(TWO_SERVERS, "rounds", ROUNDS, id="rounds-two-servers"),
        pytest.param(OTHER_NODES, "rounds", ROUNDS, id="rounds-colocated"),
        pytest.param(CIRCLE, "messages", MESSAGES, id="messages"),
        pytest.param(CIRCLE, "groups", GROUPS, id="groups"),
    ],
)
def test_ranks_that_wait_in_different_calls_learn_who_waits_where(
    layout: list[str], where: str, said: str
) -> None:
    output = expect_success(run_job(layout, program("deadlock", where)))
    for rank in range(int(layout[1])):
        assert f"rank {rank}: deadlock: {said}" in output, output


@pytest.mark.parametrize(
    "what",
    [
        "computes",
        "ends_itself",
        "gives_up",
        "has_handler",
        "has_timer",
        "is_stopped",
        "later",
        "sleeps",
        "waits_for_work",
        "waits_natively",
    ],
)
def test_a_rank_that_can_go_on_is_waited_for(what: str) -> None:
    output = expect_success(run_job(ONE_NODE, program("seems_deadlocked", what)))
    assert "done 0" in output and "done 1" in output, output


def test_a_server_that_stands_still_is_waited_for() -> None:
    layout = [*OTHER_NODES, "--servers", "1"]
    output = expect_success(run_job(layout, program("seems_deadlocked", "server_is_stopped")))
    assert "done 0" in output and "done 1" in output, output


def test_a_server_that_dies_meanwhile_is_replaced() -> None:
    job = run_job(TWO_SERVERS, program("seems_deadlocked", "server_dies"), HERRING_FAILOVER="true")
    output = expect_success(job)
    assert "done 0" in output and "done 1" in output, output
