"""Trains with partial rounds in which ranks are late at random."""

from __future__ import annotations

import hashlib
import time

import numpy as np

import herring
from herring.partial import PartialReduction


def train(elements, sync, seed, statistics):
    """Trains; returns the weights, a digest of results, contributors per round, and the steps.

    Gradients depend on the weights, so a single result taken at another time changes everything.
    Half of the workers first take the results that they have missed, as eager SGD does.
    """
    rank = herring.rank()
    delays = np.random.default_rng([seed, rank])
    series = PartialReduction(elements, "float32", sync=sync, statistics=statistics)
    weights, work = np.zeros(elements, np.float32), np.empty(elements, np.float32)
    digest, lists, step = hashlib.sha256(), [], 0

    def apply(info):
        weights[:] -= np.float32(0.1) * work
        digest.update(work.tobytes())
        lists.append([(one.rank, one.upto, one.staleness, one.active) for one in info.contributors])

    def gradient():
        noise = np.random.default_rng([rank, step]).standard_normal(elements, np.float32)
        work[:] = noise + np.sin(weights + np.float32(rank))

    while series.rounds < 15:
        if delays.random() < 0.4:
            time.sleep(delays.random() * 0.02)
        gradient()
        mine, late = work.copy(), False
        while rank % 2 and series.ready:
            apply(series.take(work))
            late = True
        series.contribute(mine, waits=not late)
        if not late:
            apply(series.take(work))
        step += 1
    gradient()
    for info in series.flush(work):
        apply(info)
    return weights.copy(), digest.hexdigest(), lists, step
