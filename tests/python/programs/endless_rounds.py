"""Passes huge and infinite timeouts to partial and planned rounds."""

import functools

import numpy as np

import herring
from endless_values import VALUES, be_late, late
from herring.partial import PartialReduction, Quorum
from herring.planned import PlannedReduction

herring.init()
rank, size = herring.rank(), herring.size()


series = PartialReduction(8, "float32", sync=Quorum(size), op="sum")
plan = PlannedReduction([(1000, "float32")], op="sum")
for value in VALUES:
    array = np.ones(8, np.float32)
    series.contribute(array)
    if rank == 0:
        waiting, failed = late(functools.partial(series.take, array, value))
        waiting.join(600)
        assert not waiting.is_alive() and not failed, (value, failed)
    else:
        be_late()
        series.take(array)
    plan.begin()
    if rank == 0:
        plan.ready(0)
        waiting, failed = late(functools.partial(plan.wait, value))
        waiting.join(600)
        assert not waiting.is_alive() and not failed, (value, failed)
    else:
        be_late()
        plan.ready(0)
        plan.wait()
