"""Tests the coarse model from Python."""

from __future__ import annotations

import dataclasses
import re

import pytest

from herring import ConfigurationError, InvalidArgumentError
from herring_lab.simulate.coarse import Costs, HostClass, Scenario, ServerClass, fixed, run


def small(**changes) -> Scenario:
    port = {"up": 200e6, "down": 200e6, "rtt": 500e-6, "buffer": 500e3}
    scenario = Scenario(
        hosts=(HostClass(4, **port),), servers=(ServerClass(4, **port),), size=12_500_000
    )
    return dataclasses.replace(scenario, **changes)


def test_rounds_and_limits():
    outcome = run(small(), rounds=5)
    assert len(outcome.rounds) == 5
    assert outcome.limit == pytest.approx(0.5)
    assert outcome.limit < outcome.wire_limit < outcome.median
    for each in outcome.rounds:
        assert each.goodput * each.seconds == pytest.approx(12_500_000)
        assert each.bound in {"link", "processor", "latency", "loss"}
    assert run(small(), rounds=1, least=3.0).rounds[1:]
    assert outcome == run(small(), rounds=5)


def test_a_fixed_window_stays():
    for segments in (1, 16):
        outcome = run(fixed(small(), segments), rounds=3)
        assert {r.window for r in outcome.rounds} == {segments * 8192}


def test_errors_name_the_value():
    host, server = HostClass(4), ServerClass(4)
    for scenario, words in (
        (small(size=-1), "size = -1; allowed: a whole number"),
        (small(size="big"), "size = 'big'; allowed: a whole number"),
        (small(pause=float("inf")), "pause = inf; allowed: 0 to 3600"),
        (small(hosts=()), "classes of hosts = 0; allowed: 1 or more"),
        (small(hosts=(dataclasses.replace(host, up=None),)), "hosts[0].up = None; allowed:"),
        (small(hosts=(dataclasses.replace(host, loss=1.0),)), "hosts[0].loss = 1; allowed:"),
        (
            small(servers=(dataclasses.replace(server, costs=Costs(cores=0)),)),
            "servers[0].costs.cores = 0; allowed:",
        ),
        (small(segment_bytes=True), "segment_bytes = True; allowed:"),
    ):
        with pytest.raises(InvalidArgumentError, match=re.escape(words)):
            run(scenario)
    with pytest.raises(ConfigurationError, match="4 colocated ones run, not 0"):
        run(small(servers=(ServerClass(2),)))
    with pytest.raises(InvalidArgumentError, match="rounds = 0"):
        run(small(), rounds=0)


def test_the_limit_follows_the_dedicated_servers():
    port = {"up": 1e9, "down": 1e9}
    for dedicated, factor in ((0, 2 * 7 / 8), (4, 14 * 8 / (64 + 32 - 8)), (8, 1.0)):
        servers = [ServerClass(dedicated, **port)] if dedicated else []
        servers += [ServerClass(8, colocated=True)] if dedicated < 8 else []
        scenario = Scenario(hosts=(HostClass(8, **port),), servers=tuple(servers), size=10**8)
        assert run(scenario, rounds=1).limit == pytest.approx(factor * 0.8)
