"""Tests series that cannot be saved or replayed."""

import os
from pathlib import Path

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises

herring.init()
path, bad = os.environ["RECORDING"], herring.InvalidArgumentError
work = np.ones(8, np.float32)
first = PartialReduction(8, "float32", sync="majority")
for _ in range(3):
    first.allreduce(work)
raises(bad, "series 0 has not ended on rank 0: flush()", first.statistics.save, path)
list(first.flush(work))
half = PartialReduction(8, "float32", sync="majority")
if herring.rank() == 0:
    list(half.flush(work))
else:
    half.contribute(work, last=True)
raises(bad, "series 0 has not ended on rank 1: flush()", half.statistics.save, path)
raises(bad, "rank 0 cannot write 'no-such-folder/x'", first.statistics.save, "no-such-folder/x")
raises(bad, "no-such-file", PartialReduction, 8, "float32", sync=herring.Replay("no-such-file"))
first.statistics.save(path)
replay = herring.Replay(path)
raises(bad, "with elements 8; now it is 9", PartialReduction, 9, "float32", sync=replay)
raises(
    bad, "with dtype float32; now it is int64", PartialReduction, 8, "int64", sync=replay, op="sum"
)
raises(bad, "with op average; now it is sum", PartialReduction, 8, "float32", sync=replay, op="sum")
raises(bad, "takes no prescale", herring.allreduce, work, prescale=2.0, sync=replay)

series = PartialReduction(8, "float32", sync=replay)
raises(bad, "flushes after 0", series.contribute, work, last=True)
raises(bad, "contribution 1 with waits=True; now it is False", series.contribute, work, waits=False)
for _ in range(3):
    series.allreduce(work)
raises(bad, "made 3 contributions and flushed; more cannot", series.allreduce, work)
list(series.flush(work))
raises(
    bad, "has 1 series", PartialReduction, 8, "float32", sync=replay, statistics=series.statistics
)

text = Path(path).read_text()
herring.barrier()
if herring.rank() == 0:
    Path(path).write_text(text.replace('"workers":2', '"workers":3'))
raises(bad, "steps of 2 workers, not of 3", PartialReduction, 8, "float32", sync=replay)
