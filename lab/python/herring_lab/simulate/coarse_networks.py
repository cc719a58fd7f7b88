"""Draws random networks for the coarse model, and measures self-controlled credit on each."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from herring_lab.simulate.coarse import (
    Costs,
    HostClass,
    Outcome,
    Round,
    Scenario,
    ServerClass,
    fixed,
    run,
)
from herring_lab.simulate.verdict import (
    COLLAPSE,
    LEAST_BUFFER,
    ROUNDS,
    SECONDS,
    Verdict,
    draw_evenly,
    search,
    with_unit,
)


def network(seed: int) -> Scenario:
    """Returns the random network that belongs to a seed.

    Networks have 100 Mbit/s to 400 Gbit/s, round trips of 5 us to 100 ms, and 2 to 512 nodes. Ports
    hold 0.1 to 10 bandwidth-delay products (but see `LEAST_BUFFER`). There is up to 0.1 % loss, an
    MTU of 1500 or 9000, and dedicated or colocated servers. Some networks have slow nodes, far
    servers or background traffic.
    """
    draw = random.Random(seed)
    nodes = round(draw_evenly(draw, 2, 512))
    rate, rtt = draw_evenly(draw, 100e6, 400e9), draw_evenly(draw, 5e-6, 100e-3)
    loss = draw.choice((0.0, 0.0, draw_evenly(draw, 1e-6, 1e-3)))
    port: dict[str, Any] = {
        "up": rate,
        "down": rate,
        "rtt": rtt / 2,
        "buffer": draw_evenly(draw, 0.1, 10) * rate / 8 * rtt,
        "loss": 1 - math.sqrt(1 - loss),
        "mtu": draw.choice((1500, 9000)),
        "background": draw.choice((0.0, 0.0, draw.uniform(0.05, 0.5))),
    }
    costs = Costs(
        frame=draw_evenly(draw, 1e-6, 10e-6),
        byte=draw_evenly(draw, 3e-11, 3e-10),
        wakeup=draw_evenly(draw, 2e-6, 20e-6),
        cores=draw.choice((1, 2, 4, 8)),
    )
    workers = draw.choice((1, 1, 2, 4, 8))
    hosts = [HostClass(nodes, workers=workers, costs=costs, **port)]
    if draw.random() < 0.25:  # some have a slower link
        slow = draw.randint(1, max(nodes // 4, 1))
        factor = draw.uniform(0.25, 1)
        slower = dict(port, up=rate * factor, down=rate * factor)
        hosts = [HostClass(nodes - slow, workers=workers, costs=costs, **port)]
        hosts.append(HostClass(slow, workers=workers, costs=costs, **slower))
    dedicated = draw.choice((nodes, nodes, nodes, 0, draw.randint(1, max(nodes - 1, 1))))
    servers = []
    if dedicated > 1 and draw.random() < 0.25:  # one is far away
        further = dict(port, rtt=min(rtt / 2 * draw.uniform(2, 20), 100e-3))
        servers = [ServerClass(dedicated - 1, costs=costs, **port)]
        servers.append(ServerClass(1, costs=costs, **further))
    elif dedicated > 0:
        servers = [ServerClass(dedicated, costs=costs, **port)]
    if dedicated < nodes:
        servers += [ServerClass(h.count, colocated=True, host=i) for i, h in enumerate(hosts)]
    senders = max(nodes, sum(s.count for s in servers)) + (nodes if dedicated < nodes else 0)
    lanes = max(workers / sum(s.count for s in servers), 1)
    least = LEAST_BUFFER * senders * lanes * 8192 / (1 - port["background"])
    hosts = [dataclasses.replace(h, buffer=max(h.buffer, least)) for h in hosts]
    servers = [dataclasses.replace(s, buffer=max(s.buffer, least)) for s in servers]
    return Scenario(
        hosts=tuple(hosts),
        servers=tuple(servers),
        size=round(draw_evenly(draw, 10e6, 1e9)),
        pause=draw.choice((0.0, 0.0, 0.1)),
        noise=draw.choice((0.01, 0.03)),
    )


def measure(seed: int) -> Verdict:
    """Runs the network of a seed, with self-controlled credit and with fixed windows."""
    scenario = network(seed)
    steered = run(scenario, rounds=ROUNDS * 3 // 2, seed=seed, least=SECONDS * 3 / 2)
    brief, best_window = search(lambda w, n: _mean(run(fixed(scenario, w), n, seed).rounds), 2)
    # Measured again with other losses, because the best of many windows was also lucky.
    again = run(fixed(scenario, best_window), ROUNDS * 3 // 2, seed + 1, SECONDS * 3 / 2)

    # Two rounds may have met no timeout. A collapse needs windows that move more in the long run.
    def at_length() -> dict[int, float]:
        return {w: _mean(run(fixed(scenario, w), ROUNDS, seed, SECONDS).rounds) for w in brief}

    return Verdict(
        seed=seed,
        network=_words(scenario),
        goodput=_mean(steered.rounds[_settled(scenario, steered) :]),
        best=_mean(again.rounds[_settled(scenario, again) :]),
        window=steered.rounds[-1].window // scenario.segment_bytes,
        best_window=best_window,
        collapsed=(
            _collapses(scenario, steered, brief) and _collapses(scenario, steered, at_length())
        ),
        bound=steered.rounds[-1].bound,
    )


def _mean(rounds: Sequence[Round]) -> float:
    """Returns the bytes per second over all rounds."""
    return sum(r.seconds * r.goodput for r in rounds) / sum(r.seconds for r in rounds)


def _settled(scenario: Scenario, outcome: Outcome, begin: int = 0) -> int:
    """Returns the first round at least `ROUNDS` rounds and `SECONDS` seconds after `begin`."""
    passed = 0.0
    for index in range(begin, len(outcome.rounds)):
        if index - begin >= ROUNDS and passed >= SECONDS:
            return index
        passed += outcome.rounds[index].seconds + scenario.pause
    return len(outcome.rounds) - 1


def _collapses(scenario: Scenario, outcome: Outcome, fixed_goodput: dict[int, float]) -> bool:
    for begin in range(_settled(scenario, outcome), len(outcome.rounds)):
        end = _settled(scenario, outcome, begin)
        stretch = outcome.rounds[begin:end]
        if len(stretch) < ROUNDS:
            break
        least = min(r.window for r in stretch) // scenario.segment_bytes
        smaller = max(goodput for w, goodput in fixed_goodput.items() if w <= least)
        if _mean(stretch) < COLLAPSE * smaller:
            return True
    return False


def _words(scenario: Scenario) -> str:
    """Returns all parameters of a network in one line."""
    host = scenario.hosts[0]
    rtt = 2 * host.rtt
    parts = [
        " + ".join(str(h.count) for h in scenario.hosts) + f" nodes of {host.workers}",
        " + ".join(f"{s.count}{'c' if s.colocated else ''}" for s in scenario.servers) + " servers",
        with_unit(host.up, "bit/s"),
        f"rtt {rtt * 1e3:.3g} ms",
        f"buffer {with_unit(host.buffer, 'B')} ({host.buffer * 8 / host.up / rtt:.2g} BDP)",
        f"loss {(1 - (1 - host.loss) ** 2):.2g}",
        f"MTU {host.mtu}",
        f"background {host.background:.2g}",
        f"size {with_unit(scenario.size, 'B')}",
        f"pause {scenario.pause:g} s",
        f"noise {scenario.noise:g}",
        f"cores {host.costs.cores:g}, {host.costs.frame * 1e6:.2g} us/frame, "
        f"{host.costs.wakeup * 1e6:.2g} us/wake-up, {host.costs.byte * 1e9:.2g} s/GB",
    ]
    parts += [f"slow nodes {with_unit(h.up, 'bit/s')}" for h in scenario.hosts[1:]]
    far = [s for s in scenario.servers[1:] if not s.colocated]
    parts += [f"far server {(host.rtt + s.rtt) * 1e3:.3g} ms" for s in far]
    return ", ".join(parts)
