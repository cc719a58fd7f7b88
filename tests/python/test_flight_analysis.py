"""Tests what `herring.flight` concludes from records of jobs that never ran."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from flights import Flight, missing_rank, with_all_states
from herring.flight import report
from herring.flight.analysis import Analysis, analyse
from herring.flight.findings import RANKING, Finding
from herring.flight.operations import Series


def first(flight: Flight) -> Finding:
    return analyse(flight.record()).findings[0]


def kinds(analysis: Analysis) -> list[str]:
    return [one.kind for one in analysis.findings]


def test_a_rank_that_never_came_is_named_with_its_program() -> None:
    finding = first(missing_rank())
    assert finding.kind == "missing"
    assert finding.ranks == (3,)
    assert finding.text == (
        "rank 3 (host1) never called 'resnet' round 7, for which ranks 0-2 waited 12 s; "
        "its program was in train.py:40 in load (data loader)"
    )


def test_the_last_common_and_the_first_different_operation() -> None:
    analysis = analyse(missing_rank().record())
    assert analysis.last_common is not None
    assert analysis.first_different is not None
    assert analysis.last_common.title == "'resnet' round 6"
    assert analysis.first_different.title == "'resnet' round 7"


def test_two_missing_ranks_are_named_together() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ranks=(0, 2), ended=False)
    flight.rank(1, state="computing", stack="train.py:12 in save_checkpoint")
    flight.rank(3, state="computing")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("missing", (1, 3))
    assert "ranks 1, 3 never called 'resnet' round 3" in finding.text
    assert "rank 1: its program was in train.py:12 in save_checkpoint (checkpoint)" in finding.text
    assert "rank 3: its program was computing" in finding.text


def test_a_stopped_process_is_the_cause_and_not_its_program() -> None:
    flight = missing_rank()
    flight.rank(3, state="stopped", stack="")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("stopped", (3,))
    assert finding.text.endswith("waited 12 s; its process is stopped")


def test_without_a_record_only_servers_prove_that_a_rank_did_not_come() -> None:
    flight = missing_rank()
    flight.lose(3)
    flight.silent = ["rank 3: its process is stopped"]
    assert first(flight).text.startswith("rank 3 never called 'resnet' round 7")
    flight.missing = []
    finding = first(flight)
    assert finding.kind == "stopped"
    assert "Nothing tells whether rank 3 had called it" in finding.text


def test_a_rank_of_which_nothing_is_known_is_not_accused() -> None:
    flight = missing_rank()
    flight.lose(3)
    flight.missing = []
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("unknown", ())
    assert "cannot tell whether rank 3 called it: no record came" in finding.text


def test_a_dead_rank_is_named_and_not_accused_of_a_call() -> None:
    flight = Flight()
    flight.steps(2)
    flight.round("resnet", 2, 4.0, ranks=(0, 1, 3), ended=False, outcome="peer lost")
    flight.lose(2)
    flight.silent = ["rank 2: its process has died"]
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("stopped", (2,))
    assert "its process has died" in finding.text


def test_a_record_that_begins_later_proves_nothing_about_a_single_name() -> None:
    flight = Flight(size=2)
    flight.call("setup", 1.0, ranks=(0,), ended=False)
    for number in range(20):
        flight.call("loss", 2.0 + number, number=number)
    flight.drop(1, before=10.0)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("unknown", ())
    assert "cannot tell whether rank 1 (host1) called it: its record begins later" in finding.text


def test_a_record_that_begins_later_proves_what_comes_next_in_a_series() -> None:
    flight = missing_rank()
    flight.missing = []
    flight.drop(3, before=5.0)
    assert (first(flight).kind, first(flight).ranks) == ("missing", (3,))


def test_a_round_that_a_rank_has_dropped_is_not_missing_there() -> None:
    flight = Flight(size=2, end=40.0)
    flight.round("resnet", 0, 1.0, ranks=(0,), ended=False)
    flight.round("resnet", 0, 1.0, ranks=(1,))
    for number in range(1, 20):
        flight.round("resnet", number, 1.0 + number)
    flight.drop(1, before=10.0)
    assert first(flight).ranks == ()


def test_a_series_of_unnamed_calls_is_ordered_by_its_numbers() -> None:
    flight = Flight(size=3)
    for number in range(9):
        flight.call(f"allreduce.{number}", 1.0 + number)
    flight.call("allreduce.9", 11.0, ranks=(0, 2), ended=False)
    flight.drop(1, before=6.0)
    flight.rank(1, state="computing")
    assert (first(flight).kind, first(flight).ranks) == ("missing", (1,))


def test_rings_that_begin_at_different_operations_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, count = 6, 60
    flight = Flight(size=size, end=100.0)
    for number in range(count):
        flight.call(f"allreduce 'loss.{number}'", 1.0 + number)
    flight.call("allreduce 'last'", 90.0, ranks=(0, 1, 2, 4, 5), ended=False)
    for rank in range(size):
        flight.drop(rank, before=1.0 + 5 * rank)
    asked = []
    series_of = Series.of
    monkeypatch.setattr(Series, "of", lambda key: [asked.append(key), series_of(key)][1])
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("missing", (3,))
    # Every entry once, and a few times for each rank that lacks an operation.
    assert len(asked) < 2 * size * count


@pytest.mark.parametrize("members", [[], [1]])
def test_a_group_that_lists_fewer_ranks_than_wait_in_it(members: list[int]) -> None:
    flight = Flight(size=2)
    flight.call("loss", 1.0, ranks=(1,), group=7)
    flight.call("loss", 1.5, ranks=(0,), group=7, ended=False)
    flight.groups = [{"group": 7, "ranks": members}]
    finding = first(flight)
    assert finding.ranks == ()


def test_different_collectives_at_the_same_place() -> None:
    flight = Flight()
    flight.steps(3)
    flight.call("allreduce.4", 6.0, ranks=(0, 1, 2), ended=False)
    flight.call("broadcast.2", 6.0, ranks=(3,), ended=False)
    flight.rank(3, stack="train.py:51 in evaluate")
    analysis = analyse(flight.record())
    assert kinds(analysis) == ["different"]
    assert analysis.verdict == (
        "ranks called different collectives at the same place: ranks 0-2 wait in 'allreduce.4' "
        "and rank 3 waits in 'broadcast.2' (rank 3 is in train.py:51 in evaluate)"
    )
    assert analysis.findings[0].ranks == (3,)


def test_of_two_ranks_that_differ_neither_is_accused() -> None:
    flight = Flight(size=2)
    flight.call("metrics", 6.0, ranks=(0,), ended=False)
    flight.call("loss", 6.0, ranks=(1,), ended=False)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("different", ())
    assert finding.text.endswith("the record cannot tell which is right")


def test_a_swapped_order_of_two_names() -> None:
    flight = Flight()
    for number in range(3):
        flight.call("loss", 1.0 + number, number=number)
        flight.call("accuracy", 1.5 + number, number=number)
    flight.call("loss", 5.0, number=3, ranks=(0, 1, 3), ended=False)
    flight.call("accuracy", 5.0, number=3, ranks=(2,), ended=False)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("order", (2,))
    assert finding.text == (
        "ranks called the same operations in different orders: ranks 0-1, 3 wait in 'loss' "
        "(call 3) and rank 2 waits in 'accuracy' (call 3)"
    )


def test_names_that_meet_in_any_order_are_no_finding() -> None:
    flight = Flight(size=2)
    flight.call("a", 1.0, ranks=(0,))
    flight.call("b", 2.0, ranks=(0,))
    flight.call("b", 1.0, ranks=(1,))
    flight.call("a", 2.0, ranks=(1,))
    assert first(flight).kind == "healthy"


def test_calls_of_one_name_are_told_apart() -> None:
    """A server's number of a call is that of its sums, and says nothing of the calls before."""
    flight = Flight()
    for number in range(1, 4):
        size = 4096 * number
        flight.call("allreduce 'loss'", float(number), number=number, size=size)
    flight.call("allreduce 'loss'", 5.0, number=4, ranks=(0, 1, 3), ended=False)
    flight.rank(2, state="computing", stack="train.py:7 in load")
    analysis = analyse(flight.record())
    assert analysis.findings[0].kind == "missing"
    assert analysis.verdict.startswith("rank 2 (host1) never called allreduce 'loss' (call 4), for")
    assert analysis.last_common and analysis.last_common.title == "allreduce 'loss' (call 3)"


def message(flight: Flight, by: int, to: int, at: float, ended: bool, verb: str = "send") -> None:
    name = f"{verb} '{verb} {to}' (rank {to})"
    flight.call(name, at, ranks=(by,), ended=ended, sums={0: None, 1: None})


def test_a_message_that_is_not_sent_accuses_its_sender_alone() -> None:
    flight = Flight()
    for at in range(1, 4):
        message(flight, 0, 1, float(at), True)
        message(flight, 1, 0, float(at), True, "receive")
    message(flight, 3, 2, 4.0, False, "receive")
    flight.rank(2, state="computing", stack="train.py:7 in load")
    analysis = analyse(flight.record())
    assert [one.ranks for one in analysis.findings] == [(2,)]
    assert analysis.verdict.startswith(
        "rank 2 (host1) never sent the message of receive 'receive 2' (rank 2) of rank 3, for "
        "which rank 3 waited "
    )
    assert analysis.first_different and analysis.first_different.key.by == 3


def test_the_cause_is_followed_over_messages() -> None:
    flight = Flight()
    message(flight, 1, 2, 3.0, False, "receive")
    message(flight, 2, 3, 3.5, False, "receive")
    flight.call("allreduce 'loss'", 4.0, number=1, ranks=(0,), ended=False)
    flight.rank(3, state="computing", stack="train.py:7 in load")
    findings = analyse(flight.record()).findings
    assert {one.ranks for one in findings} == {(3,)}, findings


def test_messages_that_do_not_meet() -> None:
    flight = Flight(size=2)
    message(flight, 0, 1, 3.0, False)
    message(flight, 1, 0, 3.5, False, "receive")
    flight.call("receive 'any'", 4.0, ranks=(1,), ended=False)
    findings = analyse(flight.record()).findings
    assert all(one.kind == "unknown" and not one.ranks for one in findings)
    assert "rank 1 waits in another message of both, whose tag may differ" in findings[0].text


def test_the_forming_of_a_group_concerns_its_ranks_alone() -> None:
    flight = Flight()
    flight.call("form_group 'tp' (ranks 0-1)", 1.0, ranks=(0, 1))
    flight.call("allreduce 'loss'", 2.0, number=1)
    analysis = analyse(flight.record())
    assert analysis.first_different is None and analysis.findings[0].kind == "healthy"
    flight.call("form_group 'dp' (ranks 0, 2-3)", 3.0, ranks=(0, 3), ended=False)
    flight.rank(2, state="computing", stack="train.py:7 in load")
    findings = analyse(flight.record()).findings
    assert [one.ranks for one in findings] == [(2,)]
    assert "never called form_group 'dp' (ranks 0, 2-3), for which" in findings[0].text


@pytest.mark.parametrize("ranks", ["0-9", "4", "0...1", "2-", "1-x", "0-9999999999"])
def test_a_forming_whose_ranks_are_not_told_accuses_nobody(ranks: str) -> None:
    """Long names have lost their middle."""
    flight = Flight()
    flight.call(f"form_group 'tp' (ranks {ranks})", 3.0, ranks=(0,), ended=False)
    findings = analyse(flight.record()).findings
    assert [(one.kind, one.ranks) for one in findings] == [("unknown", ())]


def test_three_ranks_that_wait_in_a_circle() -> None:
    flight = Flight(size=3)
    for rank, name in enumerate(("a", "b", "c")):
        flight.call(name, 5.0, ranks=(rank,), ended=False)
    analysis = analyse(flight.record())
    assert kinds(analysis) == ["different"]
    assert analysis.findings[0].ranks == ()


def test_the_cause_is_followed_over_a_rank_that_waits_itself() -> None:
    flight = Flight()
    flight.groups = [{"group": 1, "size": 2, "ranks": [2, 3]}]
    flight.steps(2)
    flight.call("pair", 3.0, number=1, ranks=(2, 3), group=1)
    flight.call("pair", 5.0, number=2, ranks=(3,), group=1, ended=False)
    flight.round("resnet", 2, 5.5, ranks=(0, 1), ended=False)
    flight.rank(2, state="computing", stack="model.py:7 in forward")
    analysis = analyse(flight.record())
    assert all(one.ranks == (2,) for one in analysis.findings)
    assert any("never called 'pair' (call 2)" in one.text for one in analysis.findings)


def test_a_group_whose_ranks_are_unknown_accuses_nobody() -> None:
    flight = Flight()
    flight.steps(2)
    flight.call("half", 5.0, ranks=(0,), group=3, ended=False)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("unknown", ())
    assert "the record does not have the ranks of that group" in finding.text


def test_a_rank_with_another_size() -> None:
    flight = Flight()
    flight.call("allreduce.0", 3.0, ended=False, outcome="mismatch", but={2: {"size": 4}})
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("mismatch", (2,))
    assert "ranks 0-1, 3 gave 4096 bytes and rank 2 gave 4 bytes" in finding.text


@pytest.mark.parametrize("size", [2, 4])
def test_of_two_sizes_neither_is_right(size: int) -> None:
    flight = Flight(size=size)
    others = {rank: {"size": 4} for rank in range(size // 2, size)}
    flight.call("allreduce.0", 3.0, ended=False, outcome="mismatch", but=others)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("mismatch", ())
    assert finding.text.endswith("the record cannot tell which is right")


def test_a_disagreement_that_sizes_do_not_show() -> None:
    flight = Flight()
    flight.call("x", 3.0, ended=False, outcome="mismatch")
    flight.rank(0, failure="'x': rank 1 gave int32, rank 0 float32")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("mismatch", ())
    assert "rank 1 gave int32" in finding.text


def test_gathered_sizes_may_differ() -> None:
    flight = Flight()
    flight.call("allgather.0", 3.0, but={2: {"size": 4}})
    flight.call("allgather.1", 4.0, ranks=(0, 1, 2), ended=False, but={2: {"size": 4}})
    assert (first(flight).kind, first(flight).ranks) == ("missing", (3,))


def test_a_rank_that_failed_on_its_own() -> None:
    flight = Flight()
    flight.call(
        "x", 3.0, ended=False, outcome="peer lost", but={1: {"outcome": "invalid argument"}}
    )
    flight.rank(1, failure="x: tensor is not contiguous")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("failed", (1,))
    assert "tensor is not contiguous" in finding.text


def test_a_rank_that_is_still_in_its_backward_pass() -> None:
    flight = Flight()
    flight.steps(3)
    late = {"ready": None, "reduced": None, "pushed": None}
    flight.round("resnet", 3, 5.0, ended=False, buffers=4, but={1: late})
    for entry in flight.ranks[1]["entries"][-4:-2]:
        entry["ready"] = entry["called"]
    flight.rank(1, state="computing", stack="train.py:30 in step")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("unready", (1,))
    assert "has begun 'resnet' round 3 and not given all its data (2 of 4 buffers)" in finding.text
    assert "its program was in train.py:30 in step" in finding.text


def test_all_ranks_are_still_computing() -> None:
    flight = Flight()
    flight.steps(3)
    none = {"ready": None, "reduced": None, "pushed": None}
    flight.round("resnet", 3, 5.0, ended=False, but=dict.fromkeys(range(4), none))
    assert (first(flight).kind, first(flight).ranks) == ("computing", ())


def test_a_rank_that_came_after_the_others_had_given_up() -> None:
    flight = Flight()
    failed = {"done": 10.0, "outcome": "timeout"}
    late = {"called": 15.0, "ready": 15.1, "pushed": None, "reduced": None, "outcome": "timeout"}
    flight.call("x", 3.0, ended=False, but={**dict.fromkeys((0, 1, 3), failed), 2: late})
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("late", (2,))
    assert "called 'x' 5.0 s after ranks 0-1, 3 had given it up" in finding.text


def test_a_rank_that_came_just_before_the_record_is_late_and_no_link_is_accused() -> None:
    flight = Flight(end=30.0)
    late = {"called": 26.9, "ready": 26.95, "pushed": 26.96, "reduced": 26.955}
    flight.call("x", 3.0, ended=False, but={2: late}, sums={0: {"ready": None}})
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("late", (2,))


def test_a_server_that_has_all_data_and_does_not_sum() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ended=False, sums={0: {"summed": 0.14}, 1: {}})
    finding = first(flight)
    assert (finding.kind, finding.ranks, finding.servers) == ("server", (), (1,))


def test_a_result_that_did_not_arrive_at_one_rank() -> None:
    flight = Flight()
    flight.steps(3)
    arrived = {"done": 0.2, "outcome": "ok"}
    flight.round(
        "resnet",
        3,
        5.0,
        ended=False,
        but=dict.fromkeys((0, 1, 3), arrived),
        sums={0: {"summed": 0.15}, 1: {"summed": 0.15}},
    )
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("result", (2,))
    assert "the result did not arrive at rank 2 (host1)" in finding.text


def test_a_cut_link_to_a_server_that_saw_nothing() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ended=False, sums={0: {"summed": 0.14}, 1: None})
    finding = first(flight)
    assert (finding.kind, finding.ranks, finding.servers) == ("link", (), (1,))
    assert "nothing of it reached server 1 (server1)" in finding.text


def test_a_cut_link_of_a_rank_that_cannot_send() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round(
        "resnet",
        3,
        5.0,
        ended=False,
        but={2: {"pushed": None}},
        sums={0: {"ready": None}, 1: {"ready": None}},
    )
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("link", (2,))
    assert "has not sent all of 'resnet' round 3" in finding.text


def test_data_that_are_lost_between_ranks_and_a_server() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ended=False, sums={0: {"summed": 0.14}, 1: {"ready": None}})
    finding = first(flight)
    assert (finding.kind, finding.ranks, finding.servers) == ("link", (), (1,))
    assert "the record cannot tell which" in finding.text
    flight.missing = [{"what": "'resnet' round 3", "for": 20.0, "ranks": [1]}]
    assert first(flight).ranks == (1,)


def test_a_server_that_is_stopped() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ended=False, sums={0: {"summed": 0.14}, 1: None})
    flight.server(1, state="stopped")
    finding = first(flight)
    assert (finding.kind, finding.servers) == ("stopped", (1,))
    assert "server 1 (server1): its process is stopped" in finding.text


def test_a_rank_that_stopped_after_its_call() -> None:
    flight = Flight()
    flight.steps(3)
    flight.round("resnet", 3, 5.0, ended=False, but={1: {"pushed": None}})
    flight.rank(1, state="stopped")
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("stopped", (1,))


def test_a_host_whose_processes_do_not_combine() -> None:
    flight = Flight()
    flight.steps(3)
    held = {"pushed": None, "reduced": None}
    flight.round(
        "resnet",
        3,
        5.0,
        ended=False,
        but=dict.fromkeys((2, 3), held),
        sums={0: {"ready": None}, 1: {"ready": None}},
    )
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("node", (2, 3))
    assert "on host1" in finding.text


def test_without_records_of_servers_a_stuck_operation_has_no_cause() -> None:
    flight = Flight(servers=0)
    flight.call("x", 5.0, ended=False)
    finding = first(flight)
    assert (finding.kind, finding.ranks) == ("unknown", ())
    assert "no server's record came" in finding.text


def test_a_job_in_which_all_is_well() -> None:
    flight = Flight()
    flight.steps(5)
    analysis = analyse(flight.record())
    assert kinds(analysis) == ["healthy"]
    assert analysis.first_different is None


def test_a_record_without_operations() -> None:
    assert first(Flight()).kind == "unknown"


def test_a_failure_outside_of_operations() -> None:
    flight = Flight()
    flight.steps(2)
    flight.rank(1, failure="out of memory")
    assert (first(flight).kind, first(flight).ranks) == ("failed", (1,))


@pytest.mark.parametrize("place", range(36))
def test_every_pair_of_moments_gives_a_verdict(place: int) -> None:
    flight = with_all_states()[place]
    analysis = analyse(flight.record())
    assert analysis.findings[0].kind in RANKING
    assert report.as_text(flight.record(), analysis).startswith(analysis.verdict)


@hypothesis.given(st.integers(2, 6), st.integers(0, 8), st.data())
@hypothesis.settings(max_examples=200)
def test_a_single_missing_rank_is_the_only_one_accused(
    size: int, steps: int, data: st.DataObject
) -> None:
    """Ranks call operations in any order; one stops computing, and others wait."""
    guilty = data.draw(st.integers(0, size - 1))
    flight = Flight(size=size, hosts=1)
    at = flight.steps(steps)
    names = data.draw(st.permutations(["a", "b", "c"]))
    called = data.draw(st.integers(0, 2))
    for place, name in enumerate(names):
        flight.call(name, at + place, ranks=None if place < called else _without(size, guilty),
                    ended=place < called)  # fmt: skip
        if place >= called:
            break
    flight.rank(guilty, state="computing")
    for dropped in range(size):
        flight.drop(dropped, before=data.draw(st.floats(0.0, at)))
    for finding in analyse(flight.record()).findings:
        assert set(finding.ranks) <= {guilty}


def _without(size: int, rank: int) -> list[int]:
    return [one for one in range(size) if one != rank]
