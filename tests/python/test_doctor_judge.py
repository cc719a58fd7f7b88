"""What the doctor concludes from examinations that are made up."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as some

from examined import GIGABIT, healthy, of_host, text_of
from herring.doctor.facts import parse_cores
from herring.doctor.findings import Finding, ordered
from herring.doctor.judge import judge, verdict
from herring.doctor.judge_links import blame, lossy_hosts, offsets
from herring.doctor.judge_rates import is_slow, suspects
from herring.doctor.links import rate_of
from herring.doctor.pairs import MOST_ROUNDS, rounds_of, sample_of
from herring.doctor.probes import sizes_below
from herring.doctor.records import Examination, Rank


def serious(about: Examination) -> list[tuple[str, str]]:
    return [(one.subject, one.what) for one in judge(about) if one.severity != "note"]


def only(about: Examination) -> Finding:
    """Returns the only finding."""
    [one] = judge(about)
    return one


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 40])
def test_equal_hosts_have_no_finding(count: int) -> None:
    assert judge(healthy(count)) == []
    assert verdict([]) == "ok"
    assert suspects(healthy(count)) == []


# Rates.


@pytest.mark.parametrize("count", [3, 4, 8, 16])
@pytest.mark.parametrize("way", ["both", "sends", "receives"])
def test_the_host_with_the_slow_link_is_named(count: int, way: str) -> None:
    about = healthy(count)
    for link in of_host(about, 1, to=way != "sends", away=way != "receives"):
        link.rate = 0.1 * GIGABIT
    assert {1} <= set(suspects(about)[0])
    one = only(about)
    assert (one.severity, one.subject) == ("warning", "h1")
    assert one.factor == pytest.approx(9.4)
    if way == "both":
        assert "sends 100 Mbit/s and receives 100 Mbit/s" in one.what
    else:
        assert f"The host {way} only 100 Mbit/s" in one.what
    assert "ethtool eth0" in one.change and "9.4 times as long" in one.helps


def test_the_costs_are_those_of_the_gradients_given() -> None:
    about = healthy(4)
    about.gradients = 1_000_000_000
    for link in of_host(about, 2):
        link.rate = 0.094 * GIGABIT
    assert "an average of 1 GB takes about 2 min instead of 13 s" in only(about).helps


def test_a_slow_pair_is_no_fault_of_its_hosts() -> None:
    about = healthy(5)
    about.links[1, 3].rate = 0.3 * GIGABIT
    assert suspects(about) == [(1, 3)] and is_slow(about, 1, 3) and not is_slow(about, 3, 1)
    assert (only(about).severity, only(about).subject) == ("note", "h1 -> h3")
    about.links[1, 3].alone = True
    one = only(about)
    assert one.severity == "warning"
    assert one.subject == "h1 -> h3" and "300 Mbit/s flow from h1 to h3" in one.what


def test_of_two_hosts_the_slow_direction_is_named() -> None:
    about = healthy(2)
    about.links[1, 0].rate = 0.1 * GIGABIT
    about.hosts[0].facts["interface"].pop("speed")
    assert only(about).subject == "h1 -> h0"


def test_links_that_are_all_below_what_interfaces_state() -> None:
    about = healthy(3)
    for link in about.links.values():
        link.rate = 0.3 * GIGABIT
    one = only(about)
    assert one.subject == "job" and "300 Mbit/s, and their interfaces state 1 Gbit/s" in one.what


def test_a_small_receive_buffer_explains_slow_links() -> None:
    about = healthy(4)
    about.hosts[2].facts["sysctl"]["tcp_rmem"] = [4096, 8192, 16384]
    for link in of_host(about, 2, away=False):
        link.rate, link.limited = 0.2 * GIGABIT, 0.9
    every = judge(about)
    assert {one.subject for one in every} == {"h2"} and len(every) == 2
    assert all("tcp_rmem" in one.change for one in every)
    assert any("16.4 kB at most" in one.what and "90 %" in one.what for one in every)


def test_buffers_must_hold_what_a_long_path_carries() -> None:
    about = healthy(2)
    for link in about.links.values():
        link.rtt = 0.1
    for host in about.hosts:
        host.facts["interface"].pop("speed")
    every = judge(about)
    assert {one.subject for one in every} == {"h0", "h1"}
    assert all("23.5 MB" in one.helps for one in every)
    assert "50331648" in every[0].change


def test_an_open_link_without_a_rate_is_reported() -> None:
    about = healthy(3)
    about.links[0, 2].rate = None
    assert serious(about)[0][0] == "h0 -> h2"
    about.skipped.append("links")
    assert [one.severity for one in judge(about)] == ["note"]


# Connections.


def test_blocked_ports_are_named_with_both_ends() -> None:
    about = healthy(4)
    for link in of_host(about, 3, away=False):
        link.ports = {30000: "", 30001: "no answer within 3 s"}
    one = only(about)
    assert (one.severity, one.subject) == ("error", "h3")
    text = "TCP port 30001 of h3 cannot be reached from h0, h1 and h2: no answer within 3 s."
    assert one.what == text
    assert "--dport 30000:30100" in one.change


def test_a_port_that_one_host_does_not_reach() -> None:
    about = healthy(4)
    about.links[0, 3].ports = {30000: "No route to host"}
    about.links[0, 3].rate = None
    one = judge(about)[0]
    assert one.subject == "h0 -> h3" and "from h0: No route to host" in one.what
    assert "route" in one.change


def test_a_host_that_may_not_connect() -> None:
    about = healthy(4)
    for link in of_host(about, 1, to=False):
        link.ports = {30000: "no answer within 3 s"}
        link.rate = None
    one = judge(about)[0]
    assert one.subject == "h1" and one.what.startswith("h1 cannot reach TCP port 30000 of h0, h2")


def test_a_range_of_ports_that_is_used_up() -> None:
    about = healthy(3)
    about.hosts[1].failure = "HERRING_PORTS=1-2 is used up"
    assert only(about).subject == "h1"


def test_the_mtu_of_the_odd_host() -> None:
    about = healthy(4)
    about.hosts[2].facts["interface"]["mtu"] = 1500
    for link in of_host(about, 2):
        link.probed = link.largest = 1500
    one = only(about)
    assert one.subject == "h2" and "ip link set eth0 mtu 9000" in one.change


@pytest.mark.parametrize("count", [2, 3, 8])
def test_large_packets_that_get_lost(count: int) -> None:
    about = healthy(count)
    for link in of_host(about, 1):
        link.largest, link.rate = 1500, 1000.0
    if count == 2:  # with two hosts, nobody knows which of them it is
        every = judge(about)
        assert [one.subject for one in every] == ["h0 -> h1", "h1 -> h0"]
    else:
        every = [only(about)]
        assert every[0].subject == "h1"
    assert every[0].severity == "error"
    assert "9000 bytes get lost" in every[0].what and "1500 bytes arrive" in every[0].what


def test_large_packets_that_get_lost_everywhere() -> None:
    about = healthy(4)
    for link in about.links.values():
        link.largest = 1500
    assert only(about).subject == "job"


def test_datagrams_that_do_not_pass_are_no_loss() -> None:
    about = healthy(3)
    for link in about.links.values():
        link.largest, link.lost = 0, link.sent
    assert only(about).severity == "note"


@pytest.mark.parametrize("count", [3, 4, 16])
def test_the_host_that_loses_packets(count: int) -> None:
    about = healthy(count)
    for link in of_host(about, 0):
        link.lost = 2
    assert lossy_hosts(about) == [0]
    assert only(about).subject == "h0" and "5 %" in only(about).what


def test_losses_everywhere_are_the_network_s() -> None:
    about = healthy(4)
    for link in about.links.values():
        link.lost = 2
    assert only(about).subject == "job"


def test_the_host_that_is_far_away() -> None:
    about = healthy(4)
    for link in of_host(about, 3):
        link.rtt = 0.02
    for host in about.hosts:  # their buffers hold enough for this path
        host.facts["sysctl"] = {}
    assert suspects(about) == [(3, 0)]
    one = only(about)
    assert one.subject == "h3" and "takes 20 ms, and 100 us between" in one.what


@pytest.mark.parametrize(
    ("ahead", "munge", "severity"),
    [(0.05, False, ""), (0.5, False, "note"), (-3600, False, "warning"), (3600, True, "error")],
)
def test_a_clock_that_is_wrong(ahead: float, munge: bool, severity: str) -> None:
    about = healthy(4)
    about.by_munge = munge
    about.links[2, 0].offset = -ahead
    if not severity:
        assert judge(about) == []
        return
    one = only(about)
    assert (one.severity, one.subject) == (severity, "h2")
    assert ("ahead of" if ahead > 0 else "behind") in one.what


def test_the_clock_of_rank_0_can_be_the_wrong_one() -> None:
    about = healthy(4)
    for other in (1, 2, 3):
        about.links[other, 0].offset = 30.0
    assert offsets(about)[0][0] == pytest.approx(30) and offsets(about)[1][0] == 0
    assert only(about).subject == "h0"


@pytest.mark.parametrize("offset", [10.0, -10.0])
def test_of_two_clocks_neither_is_blamed(offset: float) -> None:
    about = healthy(2)
    about.links[1, 0].offset, about.links[1, 0].offset_error = offset, 5e-4
    one = only(about)
    ahead, behind = ("h0", "h1") if offset > 0 else ("h1", "h0")
    assert one.subject == "h0 <-> h1"
    assert f"The clock of {ahead} is 10 s ahead of that of {behind}" in one.what
    assert "(to within 500 us)" in one.what and "One of the two is wrong" in one.what


def test_the_error_of_a_clock_is_that_of_both_comparisons() -> None:
    about = healthy(4)
    for other in (1, 2, 3):
        about.links[other, 0].offset, about.links[other, 0].offset_error = 30.0, 1e-3
    # Rank 0's clock is compared with one host only, and that host with the others through rank 0.
    assert offsets(about)[0] == pytest.approx((30, 1e-3))
    errors = sorted(error for _, error in offsets(about).values())
    assert errors == pytest.approx([0, 1e-3, 2e-3, 2e-3])


def test_a_clock_that_drifts() -> None:
    about = healthy(3)
    about.hosts[1].late_clock, about.hosts[1].clock_seconds = -0.01, 5.0
    one = only(about)
    assert one.subject == "h1" and "gains 2000 us a second" in one.what
    about.links[1, 0].offset_error = 0.05  # the path is too long to tell
    assert judge(about) == []


def test_names() -> None:
    about = healthy(3)
    for host in about.hosts:
        for other in about.hosts:
            host.names[other.hostname] = {
                "addresses": [other.address],
                "seconds": 0.0,
                "error": "",
            }
    assert judge(about) == []
    about.hosts[2].names["h1"]["addresses"] = ["10.9.9.9"]
    one = only(about)
    assert (one.severity, one.subject) == ("warning", "h2") and "means 10.9.9.9" in one.what
    about.rendezvous = "h1"
    assert only(about).severity == "error"
    about.hosts[1].facts["addresses"] = ["10.9.9.9"]  # its second network
    assert judge(about) == []
    for host in about.hosts:
        host.names["h0"] = {"addresses": [], "seconds": 0.0, "error": "unknown"}
    assert judge(about) == []  # nobody can have relied on this name


# Hosts and ranks.


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("protocol", "9", "error"),
        ("herring", "0.1.0", "warning"),
        ("python", "3.12.2", "warning"),
        ("python", "3.11.9", ""),
        ("torch", "2.1", "warning"),
        ("numpy", "1.0", "note"),
        ("kernel", "5.10", ""),
    ],
)
def test_versions(name: str, value: str, severity: str) -> None:
    about = healthy(3)
    about.hosts[1].facts["versions"][name] = value
    if severity:
        assert (only(about).severity, only(about).subject) == (severity, "h1")
    else:
        assert judge(about) == []


def test_settings_of_a_host_and_of_a_rank() -> None:
    about = healthy(3, per_host=2)
    about.hosts[1].ranks[0].settings["HERRING_FLOWS"] = "4"
    one = only(about)
    assert one.subject == "h1"
    assert one.what == "On rank 2 HERRING_FLOWS is 4, and on the other ranks it is not set."
    about.hosts[1].ranks[1].settings["HERRING_FLOWS"] = "4"
    assert only(about).what.startswith("On all ranks of the host HERRING_FLOWS is 4")
    assert "Rank 0's value counts" in only(about).helps


def test_a_setting_that_only_a_newer_version_knows() -> None:
    about = healthy(3)
    about.hosts[1].ranks[0].settings["HERRING_OF_A_LATER_VERSION"] = "1"
    one = only(about)
    assert (one.severity, one.subject) == ("warning", "h1")
    assert one.what.startswith("On all ranks of the host HERRING_OF_A_LATER_VERSION is 1, and on")
    assert "Rank 0's version of Herring does not know" in one.helps
    assert "Install the same version" in one.change


def test_settings_with_which_no_job_starts() -> None:
    about = healthy(3)
    about.hosts[2].ranks[0].problem = "HERRING_FLOWS=x is not valid"
    assert (only(about).severity, only(about).subject) == ("error", "h2")


def test_variables_without_effect_are_told_once() -> None:
    about = healthy(3)
    for host in about.hosts:
        host.ranks[0].warnings = ("HERRING_FLOW is not a setting",)
    assert (only(about).severity, only(about).subject) == ("note", "job")


def test_cores() -> None:
    about = healthy(4, per_host=2)
    for rank in about.hosts[3].ranks:
        rank.cores = frozenset({1, 2})
    one = only(about)
    assert one.subject == "h3" and "has 1 of its 8 cores" in one.what and one.factor == 4
    about = healthy(4, per_host=2)
    about.hosts[3].facts["cores"]["quota"] = 2.0
    assert "its control group" in only(about).what
    about = healthy(4, per_host=2)
    about.hosts[3].ranks += [Rank(8 + more, cores=frozenset(range(8))) for more in range(2)]
    assert "The host has 4 ranks on 8 cores" in only(about).what


def test_ranks_that_share_a_core() -> None:
    about = healthy(2, per_host=4)
    for host in about.hosts:
        for rank in host.ranks:
            rank.cores = frozenset({0})
    assert {"share 1 core." in what for _, what in serious(about)} == {True}


def test_open_files() -> None:
    about = healthy(3)
    about.hosts[1].facts["limits"]["open_files_hard"] = 512
    assert (only(about).severity, only(about).subject) == ("warning", "h1")
    about.hosts[1].facts["limits"]["open_files_hard"] = 100
    assert only(about).severity == "error"


def test_ranks_away_from_the_node_of_the_interface() -> None:
    about = healthy(2)
    about.hosts[0].facts["interface"]["numa"] = "1"
    assert judge(about) == []
    for host in about.hosts:
        host.ranks[0].cores = frozenset({0, 1, 2, 3})
    assert (only(about).severity, only(about).subject) == ("note", "h0")


def gpus(count: int, rate: float = 50e9, pinned: bool = True) -> dict[str, Any]:
    device = {"refused": "", "out": rate, "in": 50e9, "both": 80e9, "pinned": pinned}
    return {"driver": "550", "devices": [dict(device) for _ in range(count)]}


def test_gpus() -> None:
    about = healthy(3)
    for host in about.hosts:
        host.facts["gpus"] = gpus(2)
    assert judge(about) == []
    said = " ".join(text_of(about).split())
    assert "opies of 6 GPUs reach 50.0 GB/s to host memory and 50.0 GB/s back." in said
    about.hosts[1].facts["gpus"]["devices"][1]["out"] = 5e9
    one = only(about)
    assert one.subject == "h1" and "GPU 1 copies 5.0 GB/s to host memory" in one.what
    about.hosts[1].facts["gpus"] = gpus(1)
    assert "The host has 1 GPUs, and the others have 2" in only(about).what
    about.hosts[1].facts["gpus"] = gpus(2, pinned=False)
    assert "pin" in only(about).what
    about.hosts[1].facts["gpus"] = gpus(2)
    about.hosts[1].facts["gpus"]["devices"][0] = {"refused": "", "error": "it is gone"}
    assert (only(about).severity, only(about).subject) == ("error", "h1")


def test_ranks_that_are_missing_and_hosts_that_fall_silent() -> None:
    about = healthy(2)
    about.size, about.missing = 5, {2: "h2", 3: "h2", 4: ""}
    about.hosts[1].lost_in = "link rates"
    every = judge(about)
    assert {one.subject for one in every} == {"h2", "rank 4", "h1"}
    assert any("Ranks 2-3 of 5 on h2 did not reach rank 0" in one.what for one in every)
    assert verdict(every) == "error"


def test_the_worst_and_the_dearest_come_first() -> None:
    given = (("note", 9), ("warning", 2), ("error", 1), ("warning", 3))
    findings = [Finding(kind, str(cost), "", factor=cost) for kind, cost in given]
    found = [(one.severity, one.factor) for one in ordered(findings)]
    assert found == [("error", 1), ("warning", 3), ("warning", 2), ("note", 9)]


# The pure parts below.


@hypothesis.given(some.integers(3, 12), some.data())
def test_blame_finds_the_only_bad_host(count: int, data: Any) -> None:
    host = data.draw(some.integers(0, count - 1))
    way = data.draw(some.sampled_from(["to", "from", "both"]))
    tested = {(a, b) for a in range(count) for b in range(count) if a != b}
    bad = {
        (a, b) for a, b in tested if (way != "from" and b == host) or (way != "to" and a == host)
    }
    [one] = blame(bad, tested)
    assert (one.host, one.way, one.links) == (host, way, frozenset(bad))


@hypothesis.given(some.integers(2, 12), some.data())
def test_blame_explains_every_bad_link_once(count: int, data: Any) -> None:
    tested = {(a, b) for a in range(count) for b in range(count) if a != b}
    bad = data.draw(some.sets(some.sampled_from(sorted(tested))))
    explained = [link for one in blame(bad, tested) for link in one.links]
    assert sorted(explained) == sorted(bad)


@hypothesis.given(some.integers(0, 60))
def test_no_host_is_in_two_pairs_at_once(count: int) -> None:
    rounds = rounds_of(count)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) and all(len(pair) == 2 for pair in met)
    for pairs in rounds:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts)) and set(hosts) <= set(range(count))
    if count <= 16:
        assert len(met) == count * (count - 1) // 2
        assert len(rounds) == (0 if count < 2 else count - 1 + count % 2)
    else:
        assert len(rounds) == MOST_ROUNDS


@hypothesis.given(some.integers(1, 60), some.data())
def test_every_host_asks_some_others_and_the_first_one(count: int, data: Any) -> None:
    host = data.draw(some.integers(0, count - 1))
    found = sample_of(count, host)
    assert len(found) == len(set(found)) <= MOST_ROUNDS + 1 and host not in found
    assert host == 0 or 0 in found


def test_rates_leave_out_the_beginning() -> None:
    samples = [(0.0, 0), (0.09, 500), (0.2, 1500), (0.3, 2500)]
    assert rate_of(samples, 0.3) == pytest.approx(8 * 2000 / 0.21)
    # Data that stop coming lower the rate.
    assert rate_of([(0.0, 0), (0.5, 5000)], 1.0) == pytest.approx(8 * 5000 / 0.9)
    assert rate_of([(0.0, 0), (0.1, 5000)], 1.0) == 0


def test_sizes_of_packets() -> None:
    assert sizes_below(1500)[:3] == [1500, 1492, 1450]
    assert sizes_below(9000)[0] == 9000 and 1500 in sizes_below(9000)


def test_lists_of_cores() -> None:
    assert parse_cores("0-2,5\n") == [0, 1, 2, 5] and parse_cores("") == []
