"""Rank 1 never flushes, and all ranks learn so when the timeout passes."""

import numpy as np

import herring

herring.init()
array = np.ones(100, np.float32)
for _step in range(3 + herring.rank()):
    herring.allreduce(array, sync="solo", name="a")
try:
    if herring.rank() == 1:
        herring.barrier(timeout=600)
    herring.flush(array, name="a")
except herring.TimeoutError as error:
    text = str(error)
    assert "'a', round" in text and "s for rank 1 (" in text, text
    assert "rank 0" not in text and "rank 2" not in text, text
    assert "calls flush()" in text, text
    print("told", flush=True)
