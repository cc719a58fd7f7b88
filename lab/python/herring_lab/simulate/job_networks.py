"""Draws random networks for whole jobs in virtual time, and measures self-controlled credit."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from herring_lab.simulate.job import JobCosts, JobRound, JobScenario, PathModel, run
from herring_lab.simulate.verdict import (
    COLLAPSE,
    LEAST_BUFFER,
    ROUNDS,
    SECONDS,
    WINDOWS,
    Verdict,
    draw_evenly,
    search,
    with_unit,
)

_SEGMENT = 8192
#: The most packets of a round, on which the cost of simulating it depends.
_PACKETS = 30_000
#: A job has found its window after `ROUNDS` rounds, or after `SECONDS` but at most so many rounds.
_MOST_ROUNDS = 60
#: Rounds after that whose goodput counts: several, because losses differ from round to round.
_COUNTED = 16


def network(seed: int) -> JobScenario:
    """Returns the random network that belongs to a seed.

    Networks have 100 Mbit/s to 10 Gbit/s, round trips of 5 us to 100 ms, and 2 to 16 nodes. Ports
    hold 0.1 to 10 bandwidth-delay products (but see `LEAST_BUFFER`). There is up to 0.1 % loss, an
    MTU of 1500 or 9000, and dedicated or colocated servers. Some networks have slow hosts, far
    servers, or processors that limit the job.
    """
    draw = random.Random(seed)
    nodes = round(draw_evenly(draw, 2, 16))
    rate, rtt = draw_evenly(draw, 100e6, 10e9), draw_evenly(draw, 5e-6, 100e-3)
    path = PathModel(rtt / 2, 0.0, draw.choice((0.0, 0.0, draw_evenly(draw, 1e-6, 1e-3))))
    mtu = draw.choice((1500, 9000))
    servers = draw.choice((nodes, nodes, nodes, 0, draw.randint(1, max(nodes - 1, 1))))
    rates = {}
    if draw.random() < 0.25:
        slower = rate * draw.uniform(0.25, 1)
        rates = dict.fromkeys(range(draw.randint(1, max(nodes // 4, 1))), slower)
    far = {}
    if servers > 1 and draw.random() < 0.25:
        delay = min(path.delay * draw.uniform(2, 20), 50e-3)
        far = {nodes + servers - 1: dataclasses.replace(path, delay=delay)}
    senders = max(nodes, servers) + (nodes if servers < nodes else 0)
    least = LEAST_BUFFER * senders * _SEGMENT * 8 / min([rate, *rates.values()])
    costs = draw_evenly(draw, 0.3, 3)
    return JobScenario(
        nodes,
        servers,
        size=round(min(draw_evenly(draw, 10e6, 1e9), _PACKETS * mtu / (2 * nodes))) // 4 * 4,
        rate=rate,
        rates=rates,
        queue=max(draw_evenly(draw, 0.1, 10) * rtt, least),
        path=path,
        far=far,
        mtu=mtu,
        cores=draw.choice((0, 1, 2, 4)),
        costs=JobCosts(*(costs * each for each in dataclasses.astuple(JobCosts()))),
        pause=draw.choice((30e-6, 30e-6, 0.1)),
        settings={"warn_after": "3600"},  # no warnings: small windows are slow on long paths
    )


def measure(seed: int) -> Verdict:
    """Runs the network of a seed, with self-controlled credit and with fixed windows."""
    scenario = network(seed)
    brief, best_window = search(lambda window, n: _goodput(scenario, window, n, seed), 3)
    # Measured again with other losses, because the best of many windows was also lucky.
    best = _goodput(scenario, best_window, _COUNTED, seed + 1)
    seconds = scenario.size / best + scenario.pause
    until = max(ROUNDS, min(round(SECONDS / seconds), _MOST_ROUNDS))
    rounds = run(scenario, until + _COUNTED, seed).rounds[until:]
    goodput = _mean(scenario, rounds)
    least = min(each.credit for each in rounds) // _SEGMENT
    smaller = [brief[window] for window in WINDOWS if window <= least]
    return Verdict(
        seed=seed,
        network=_words(scenario),
        goodput=goodput,
        best=best,
        window=rounds[-1].credit // _SEGMENT,
        best_window=best_window,
        collapsed=goodput < COLLAPSE * max(smaller, default=0.0),
    )


def _goodput(scenario: JobScenario, window: int, rounds: int, seed: int) -> float:
    """Returns the bytes per second with a fixed window in segments, without the first round."""
    settings = {**scenario.settings, "credit": str(window * _SEGMENT)}
    fixed = dataclasses.replace(scenario, settings=settings)
    return _mean(scenario, run(fixed, rounds + 1, seed).rounds[1:])


def _mean(scenario: JobScenario, rounds: Sequence[JobRound]) -> float:
    return scenario.size * len(rounds) / sum(each.seconds for each in rounds)


def _words(scenario: JobScenario) -> str:
    """Returns all parameters of a network in one line."""
    rtt = 2 * scenario.path.delay
    parts = [
        f"{scenario.nodes} + {scenario.servers} hosts",
        with_unit(scenario.rate, "bit/s"),
        f"rtt {rtt * 1e3:.3g} ms",
        f"queue {scenario.queue * 1e3:.3g} ms ({scenario.queue / rtt:.2g} BDP)",
        f"loss {scenario.path.loss:.2g}",
        f"MTU {scenario.mtu}",
        f"size {with_unit(scenario.size, 'B')}",
        f"pause {scenario.pause:g} s",
        f"cores {scenario.cores}, {scenario.costs.wakeup * 1e6:.2g} us/wake-up",
    ]
    slow = sorted({*scenario.rates.values()})
    parts += [f"{len(scenario.rates)} slow nodes {with_unit(each, 'bit/s')}" for each in slow]
    parts += [f"far server {2e3 * each.delay:.3g} ms" for each in scenario.far.values()]
    return ", ".join(parts)
