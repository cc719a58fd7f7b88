"""What people are told of a status, in words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import statuses
from herring.observe import words
from herring.observe.schema import SCHEMA, parse


def told(status: dict[str, Any]) -> str:
    return "\n".join(text for _, text in words.lines(parse(json.dumps(status), "the test")))


def test_a_status_with_nothing_but_its_schema_is_shown() -> None:
    assert "no step yet" in told({"schema": SCHEMA})
    assert "It is not known yet what binds" in told({"schema": SCHEMA, "binds": None})


def test_texts_cannot_change_the_terminal() -> None:
    status = statuses.stalled()
    status["ranks"][6]["stack"] = "evil\x1b[2J\x9b2J.py\n\u202ereversed"
    status["job"] = "\x1b]0;title\x07"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", told(status))


def test_ranks_that_are_late_in_turn_bind_without_a_name() -> None:
    status = statuses.late()
    status["binds"] |= {"who": None, "share": 0.31}
    text = told(status)
    assert "Ranks are late in turn: 31 % of a step is the wait for the last one." in text
    assert "slow rank" not in text


@pytest.mark.parametrize(
    ("spare", "said"),
    [
        (0, "The loss of a dedicated server would end the job now."),
        (1, "The job would go on without any one of its dedicated servers."),
        (2, "without any one of its dedicated servers, and 1 more after it."),
    ],
)
def test_whether_a_server_may_be_lost_is_told(spare: int, said: str) -> None:
    assert "dedicated server" not in told(statuses.healthy())
    assert said in told({**statuses.healthy(), "servers_to_spare": spare})


def test_few_steps_are_counted() -> None:
    status = statuses.late()
    status["ranks"][5]["late"]["steps"] = 16
    assert "late by 31 ms (at most 102 ms) in 15 of 16 steps" in told(status)


def test_nothing_binds_once_no_step_ends() -> None:
    status = statuses.healthy()
    status["steps"] |= {"last": 7.3, "stands": True}
    assert "No step has ended for 7.3 s.\n" in told(status)
    status["steps"] |= {"last": 0.3, "stands": False}
    assert "Compute binds, 81 % of a step." in told(status)


def test_a_late_rank_and_a_slow_server_are_named() -> None:
    text = told(statuses.late())
    assert "A slow rank binds: rank 5 (node03), 23 % of a step." in text
    assert "Without it a step would be 1.3 times as fast." in text
    assert (
        "rank 5 (node03, pid 41205): late by 31 ms (at most 102 ms) in 94 % of the steps, again "
        "and again: its input (data loading)\n    train.py:40 in load"
    ) in text
    assert "server 1 (server02, dedicated, pid 9901): slow, its link, 48211 retransmits" in text
    assert text.count("rank 5") == 2  # the finding would say the same once more


def test_missing_ranks_are_named_with_what_they_do() -> None:
    text = told(statuses.stalled())
    assert "'gradients' (round 7201) has waited for 42 s for ranks 3, 6." in text
    assert "rank 3 (node02, pid 41203): stopped for 42 s" in text
    assert "silent for 39 s, computes\n    checkpoint.py:112 in save" in text


def test_many_ranks_alike_are_one_line_and_many_others_are_counted() -> None:
    status = statuses.healthy(64)
    for rank in status["ranks"][:48]:
        rank |= {"state": "starting", "for": 3.0 + rank["rank"]}
    assert "ranks 0-47 (24 hosts): starting for 50 s" in told(status)
    for rank in status["ranks"]:
        rank |= {"outlier": True, "late": {"median": 0.1, "max": 1, "share": 1, "steps": 9}}
    text = told(status)
    assert "... and 48 more: --all shows them" in text
    assert text.count("late by 100 ms") == 16


def test_findings_are_counted_like_the_ranks_they_are_about() -> None:
    status = statuses.healthy(64)
    for rank in status["ranks"]:
        rank |= {"outlier": True, "late": {"median": 0.1, "max": 1, "share": 1, "steps": 9}}
    status["findings"] = [f"rank {number} (node01) is late by 100 ms" for number in range(64)]
    text = told(status)
    assert text.count("late by 100 ms") == 16 and text.count("more: --all shows them") == 1
    status["findings"] += [f"link {number} is slow" for number in range(20)]
    text = told(status)
    assert text.count(" is slow") == 16 and text.endswith("... and 4 more: --all shows them")
    whole = [text for _, text in words.lines(parse(json.dumps(status), "the test"), True)]
    assert "\n".join(whole).count(" is slow") == 20
    assert "... and 48 more: the tables have them" in whole


def test_a_finding_about_rank_1_is_not_told_by_a_line_about_rank_12() -> None:
    status = statuses.healthy(16)
    status["ranks"][12] |= {"state": "stopped", "for": 9.0}
    status["findings"] = ["rank 1 (node01) computes longer"]
    assert "rank 1 (node01) computes longer" in told(status)


def test_what_binds_is_said_once() -> None:
    status = statuses.healthy()
    status["binds"] |= {"what": "network", "share": 0.79}
    status["findings"] = ["the network binds 79 % of the step (0.66 s)", "the node stage is old"]
    text = told(status)
    assert text.lower().count("the network binds") == 1
    assert text.endswith("The network binds, 79 % of a step.\nthe node stage is old")
    # Once no step ends, the line says that instead.
    status["steps"] |= {"last": 7.3, "stands": True}
    assert "the network binds 79 % of the step (0.66 s)" in told(status)
