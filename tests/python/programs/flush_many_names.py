"""Series that each have a name of their own do not stay in memory."""

import gc

import numpy as np

import herring
from support import raises

herring.init()
data = np.ones(5, np.float32)
herring.allreduce(data, sync="majority", name="first")
herring.allreduce(data, sync="majority", name="again")
for number in range(300):
    herring.allreduce(data, sync="majority", name=f"series.{number}")
    herring.flush(data, name=f"series.{number}")
    if number % 50 == 0:
        herring.flush(data, name="again")
        herring.allreduce(data, sync="majority", name="again")
kept = sum(isinstance(each, herring.RoundStatistics) for each in gc.get_objects())
assert kept <= 102, kept
assert herring.partial_statistics("series.299").series == 1
assert herring.partial_statistics("first").series == 1  # which goes on
assert herring.partial_statistics("again").series == 7
raises(herring.InvalidArgumentError, "latest 100", herring.partial_statistics, "series.0")
herring.flush(data, name="first")
assert len(herring.partial_statistics("first").rounds) == 2
herring.flush(data, name="again")
