"""Tests whole jobs in virtual time, through Python."""

import dataclasses
import statistics

import pytest

from herring.errors import ConfigurationError, TimeoutError
from herring_lab.simulate.job import Change, JobScenario, PathModel, run

BASE = JobScenario(nodes=4, servers=4, size=5_000_000, rate=200e6)
LIMIT = BASE.size * 8 / BASE.rate


@pytest.mark.parametrize(
    ("changed", "limits"),
    [
        ({}, 1.0),
        ({"path": PathModel(delay=1e-3)}, 1.0),
        ({"servers": 0}, 2 * 3 / 4),
        ({"nodes": 8, "servers": 4}, 2 * 8 * 7 / (8 * 8 + 4 * 8 - 2 * 4)),
        ({"rates": {1: 100e6}}, 2.0),
    ],
)
def test_a_round_takes_a_little_more_than_the_links_need(changed, limits):
    outcome = run(dataclasses.replace(BASE, **changed), rounds=20)
    assert 1.0 <= outcome.median(10) / (LIMIT * limits) < 1.07


def test_a_far_server_has_a_window_of_its_own():
    scenario = dataclasses.replace(
        BASE, size=25_000_000, path=PathModel(2e-4), far={7: PathModel(1e-2)}
    )
    assert run(scenario).median() < 1.25 * scenario.size * 8 / scenario.rate


def test_memory_bounds_the_window_of_a_long_path():
    # A megabyte per flow is a small part of what a path of 100 ms holds.
    scenario = JobScenario(nodes=2, servers=2, size=50_000_000, rate=1e9, path=PathModel(5e-2))
    bounded = run(dataclasses.replace(scenario, settings={"credit_max": "1MiB"}), rounds=20)
    free = run(scenario, rounds=20)
    assert max(one.credit for one in bounded.rounds) == 1 << 20
    assert max(one.credit for one in free.rounds) > 1 << 20
    assert free.median(12) < 0.8 * bounded.median(12)


def test_two_sites_share_a_thin_link():
    # Half of what each of four workers sends, and half of what it receives, crosses this link.
    thin = 100e6
    scenario = dataclasses.replace(BASE, rate=1e9, sites=((thin, PathModel(1e-2)),))
    crosses = 2 * scenario.size * 8 / thin
    assert 1.0 <= run(scenario, rounds=25).median() / crosses < 1.1


def test_a_link_that_gets_slower_and_faster_again_is_followed_within_five_seconds():
    changes = (Change(6.0, 0, 100e6), Change(18.0, 0, 200e6))
    rounds = run(dataclasses.replace(BASE, changes=changes), rounds=90).rounds
    slow = [each.seconds for each in rounds if 11.0 <= each.began < 17.5]
    again = [each.seconds for each in rounds if each.began >= 23.0]
    # The controller's trials may fall into either part.
    assert statistics.fmean(slow) < 1.1 * 2 * LIMIT
    assert statistics.fmean(again) < 1.1 * LIMIT


def test_contents_are_summed_and_checked():
    scenario = dataclasses.replace(BASE, size=400_000, data=True, path=PathModel(loss=0.01))
    assert len(run(scenario, rounds=3).rounds) == 3


def test_the_same_seed_repeats_a_job():
    scenario = dataclasses.replace(BASE, path=PathModel(5e-4, jitter=1e-4, loss=1e-3))
    assert run(scenario, 4, seed=5) == run(scenario, 4, seed=5)
    assert run(scenario, 4, seed=5) != run(scenario, 4, seed=6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodes": 1}, ["nodes is 1", "2"]),
        ({"rate": -1.0}, ["rate is -1"]),
        ({"rates": {9: 1e9}}, ["no host 9", "0 to 7"]),
        ({"path": PathModel(delay=float("nan"))}, ["path.delay is nan"]),
        ({"path": PathModel(loss=1.5)}, ["path.loss is 1.5", "0.5"]),
        ({"mtu": 100}, ["mtu is 100", "576"]),
        ({"settings": {"flows": "99"}}, ["flows", "99"]),
    ],
)
def test_impossible_values_are_named(changed, words):
    with pytest.raises(ConfigurationError) as caught:
        run(dataclasses.replace(BASE, **changed), 1)
    assert all(word in str(caught.value) for word in words)


def test_patience_ends():
    with pytest.raises(TimeoutError, match="4 of 4 ranks"):
        run(BASE, 1, patience=0.01)
