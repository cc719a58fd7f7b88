"""Runs part of both property suites of credit; `make credit-suite` runs all networks."""

from __future__ import annotations

import dataclasses

import pytest

from herring_lab.simulate import coarse_networks, job_networks, property_suite
from herring_lab.simulate.verdict import MOST, Verdict, breaches

# These limits are a little below what the controller reaches today, to find changes for the worse.
# `make credit-suite` checks the real goal.
LEAST_GOOD, MOST_COLLAPSED = 34, 0  # of 40 networks of the coarse model
LEAST_GOOD_JOBS = 3  # of 4 whole jobs

GOOD = Verdict(3, "2 + 2 hosts", 1.0, 1.0, 4, 4, False)


def test_networks_follow_from_their_numbers():
    for networks in (coarse_networks, job_networks):
        assert networks.network(7) == networks.network(7) != networks.network(8)
    for seed in range(200):
        scenario = coarse_networks.network(seed)
        assert 2 <= sum(h.count for h in scenario.hosts) <= 512
        assert all(h.up * 4 >= 100e6 and h.up <= 400e9 for h in scenario.hosts)
        job = job_networks.network(seed)
        assert 2 <= job.nodes <= 16
        assert all(25e6 <= rate <= 10e9 for rate in (job.rate, *job.rates.values()))


def test_credit_control_on_random_networks():
    verdicts = [coarse_networks.measure(seed) for seed in range(1, 41)]
    good = sum(v.share >= MOST for v in verdicts)
    assert good >= LEAST_GOOD, [(v.seed, round(v.share, 2)) for v in verdicts]
    assert sum(v.collapsed for v in verdicts) <= MOST_COLLAPSED


def test_credit_control_of_whole_jobs_on_random_networks():
    verdicts = [job_networks.measure(seed) for seed in (1, 3, 7, 8)]
    good = sum(v.share >= MOST for v in verdicts)
    assert good >= LEAST_GOOD_JOBS, [(v.seed, round(v.share, 2)) for v in verdicts]
    assert not any(v.collapsed for v in verdicts)


def test_breaches_are_found():
    poor = dataclasses.replace(GOOD, goodput=0.8)
    bad = dataclasses.replace(GOOD, goodput=0.7, seed=77)
    assert breaches([GOOD] * 19 + [poor]) == []
    assert "only 18 of 20" in breaches([GOOD] * 18 + [poor] * 2)[0]
    assert "networks 77" in breaches([GOOD] * 19 + [bad])[0]
    assert "collapse" in breaches([GOOD] * 19 + [dataclasses.replace(GOOD, collapsed=True)])[0]


def test_the_command_says_what_is_not_so(capsys, monkeypatch):
    for model in property_suite.MODELS:
        assert property_suite.main(["--model", model, "--networks", "1", "--first", "3"]) in (0, 1)
        assert "1 networks" in capsys.readouterr().out
    bad = dataclasses.replace(GOOD, goodput=1.0, best=2.0)
    monkeypatch.setitem(property_suite.MODELS, "coarse", lambda seed: bad)
    assert property_suite.main(["--networks", "2"]) == 1
    assert "property does not hold" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        property_suite.main(["--networks", "0"])
