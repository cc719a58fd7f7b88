"""Runs equally many rounds on every rank, so that the following flush is one full round."""

import time

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum

herring.init()
rank, size = herring.rank(), herring.size()
random = np.random.default_rng(rank)
for elements in (64, 50_000):
    for sync in ("solo", "majority", Quorum(3), Quorum(1, staleness=0)):
        series = PartialReduction(elements, "int64", sync=sync, op="sum")
        work = np.ones(elements, np.int64)
        for _ in range(8):
            time.sleep(random.random() * 0.004)
            series.allreduce(work)
        infos = list(series.flush(work))
        assert len(infos) == 1 and infos[0].last and infos[0].round == 8, infos
        assert [one.rank for one in infos[0].contributors] == list(range(size)), infos
