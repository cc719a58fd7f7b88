"""What the doctor says of examinations that are made up."""

from __future__ import annotations

import pytest

from examined import GIGABIT, healthy, of_host, text_of
from herring.doctor.curve import SIZES
from herring.doctor.judge import judge
from herring.doctor.report import to_json


def test_the_report_is_quiet_if_all_is_well() -> None:
    said = text_of(healthy(16, per_host=2)).splitlines()
    assert len(said) == 3
    assert said[0].startswith("herring doctor: all is well (16 hosts with 32 ranks")
    assert said[1].startswith("Links carry 940 Mbit/s, round trips take 100 us")
    assert "h15" in text_of(healthy(16), tables=True)


def test_the_report_begins_with_the_verdict_and_has_tables() -> None:
    about = healthy(4)
    for link in of_host(about, 1):
        link.rate = 0.1 * GIGABIT
    said = text_of(about).splitlines()
    assert said[0].startswith("herring doctor: 1 warning (4 hosts")
    assert said[4] == "warning  h1"
    assert any(line.startswith("h1    10.0.0.2  1      8      9000  100 Mbit/s") for line in said)
    assert any("h0 -> h1" in line and "100 Mbit/s" in line for line in said)


def test_commands_are_not_folded() -> None:
    about = healthy(4)
    for link in of_host(about, 3, away=False):
        link.ports = {30000: "no answer within 3 s"}
    said = text_of(about).splitlines()
    command = "'iptables -A INPUT -p tcp --dport 30000:30100 -j ACCEPT'."
    assert any(line.endswith(command) for line in said)
    assert all(len(line) <= 100 for line in said)


def test_the_report_as_json() -> None:
    about = healthy(3)
    about.links[0, 1].rate, about.links[0, 1].alone = 0.2 * GIGABIT, True
    document = to_json(about, judge(about))
    assert document["verdict"] == "warning"
    assert document["findings"][0]["subject"] == "h0 -> h1"
    assert [host["name"] for host in document["hosts"]] == ["h0", "h1", "h2"]
    assert len(document["links"]) == 6


def test_curves_are_fitted_and_the_slowest_link_is_named() -> None:
    about = healthy(3)
    for (one, other), link in about.links.items():
        rate = 1e7 if (one, other) == (2, 0) else 1e8  # bytes per second
        link.curve = [(size, 50e-6 + size / rate) for size in SIZES]
    said = " ".join(text_of(about).split())
    assert "message one way carries slowest where" in said
    assert "1 MB 10 ms 796 Mbit/s 100 ms h2 -> h0" in said
    assert "Fitted to 6 directions of links" in said and "alpha 50 us, 1/beta 800 Mbit/s" in said
    assert "the lowest rate 80 Mbit/s (h2 -> h0)" in said
    assert "'herring simulate --nodes 3 --rate 800mbit --rtt 100us'" in said
    links = to_json(about, judge(about))["links"]
    [slow] = [one for one in links if (one["from"], one["to"]) == ("h2", "h0")]
    assert slow["alpha_seconds"] == pytest.approx(50.1e-6)
    assert slow["fitted_bits_per_second"] == pytest.approx(8e7)
    assert slow["curve"][0] == {"bytes": 1, "seconds": pytest.approx(50.1e-6)}


def test_a_curve_of_a_link_that_answered_once_is_left_out() -> None:
    about = healthy(2)
    about.links[0, 1].curve = [(1, 0.0), (100, 1e-4)]
    assert "Fitted" not in text_of(about)
    assert all("curve" not in link for link in to_json(about, judge(about))["links"])
