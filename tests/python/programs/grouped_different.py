"""The last rank passes a different list from the others; all arrays stay unchanged."""

import numpy as np

import herring
from grouped_lists import same
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()

last = size - 1


def lists():
    own = [np.full((2, 3), rank, np.float32), np.full(4, rank, np.int32)]
    yield "order", (own if rank < last else own[::-1])
    yield "shape", (own if rank < last else [own[0].reshape(3, 2), own[1]])
    yield "total", (own if rank < last else [own[0], np.full(5, rank, np.int32)])
    yield "parts", (own if rank < last else [own[0][:1], own[0][1:], own[1]])
    yield "dtype", (own if rank < last else [own[0], own[1].astype(np.float32)])
    yield "more", (own if rank < last else [*own, np.full(4, rank, np.int64), np.full(2, 1.0)])
    yield "less", (own if rank < last else own[:1])
    yield "nothing", (own if rank < last else [])


calls = [
    lambda arrays, name: herring.grouped_allreduce(arrays, "sum", name=name),
    lambda arrays, name: herring.grouped_allreduce_async(arrays, "sum", name=name).wait(600),
    lambda arrays, name: herring.grouped_reduce_scatter(arrays, "sum", name=name),
    lambda arrays, name: herring.grouped_allgather(arrays, name=name),
    lambda arrays, name: herring.grouped_broadcast(arrays, name=name),
]
for n, call in enumerate(calls):
    for what, arrays in lists():
        if n == 3 and what == "total":
            continue  # an all-gather allows different totals
        before = [a.copy() for a in arrays]
        try:
            call(arrays, "g")
        except herring.MismatchError as error:
            text = str(error)
            assert f"rank {last}" in text, (what, text)
            assert text.count(" of ") == 2 and "array" in text, text
        else:
            raise AssertionError((n, what))
        same(arrays, before)
        # The name can be used again, even with more dtypes than before.
        mine = [np.full(3, rank, t) for t in ("float32", "int64", "int8", "float64")]
        for found in herring.grouped_allreduce(mine, "sum", name="g", timeout=600):
            assert (found == size * (size - 1) // 2).all()
        herring.grouped_reduce_scatter(mine, "sum", name="g")
        herring.grouped_broadcast(mine, name="g")
raises(herring.HerringError, "", herring.grouped_broadcast, [np.ones(1)], 0 if rank else last)
print(text)
