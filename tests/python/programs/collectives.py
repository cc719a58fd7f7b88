"""Compares every collective except all-reduce with NumPy."""

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
for rows in (2, 60_000):
    mine = np.full((rows + rank, 3), rank, np.int16)
    gathered = herring.allgather(mine)
    expected = np.concatenate([np.full((rows + r, 3), r, np.int16) for r in range(size)])
    assert np.array_equal(gathered, expected)

    part = herring.reduce_scatter(np.arange(rows * 2.0).reshape(rows, 2) + rank, "sum")
    whole = np.arange(rows * 2.0).reshape(rows, 2) * size + size * (size - 1) / 2
    first = rank * (rows // size) + min(rank, rows % size)
    assert np.array_equal(part, whole[first : first + rows // size + (rank < rows % size)])

    # Explicit splits, some of which may be empty.
    splits = [0] * size
    splits[0] += 1
    splits[-1] += rows - 1
    part = herring.reduce_scatter(np.arange(rows * 2.0).reshape(rows, 2) + rank, "sum", splits)
    first = sum(splits[:rank])
    assert np.array_equal(part, whole[first : first + splits[rank]])

    for root in range(size):
        array = np.arange(rows * 2.0).reshape(rows, 2) + rank
        found = herring.reduce(array, "sum", root)
        assert np.array_equal(found, whole) if rank == root else found is None
        assert np.array_equal(array, np.arange(rows * 2.0).reshape(rows, 2) + rank)

        found = herring.gather(mine, root)
        gathered = np.concatenate([np.full((rows + r, 3), r, np.int16) for r in range(size)])
        assert np.array_equal(found, gathered) if rank == root else found is None

        whole_of_root = np.arange(rows * size * 3, dtype=np.int64).reshape(-1, 3)
        part = herring.scatter(whole_of_root if rank == root else None, root)
        assert np.array_equal(part, whole_of_root[rank * rows : (rank + 1) * rows])
        uneven = [0] * size
        uneven[-1] += 1
        uneven[0] += size * rows - 1
        given = (whole_of_root, root, uneven) if rank == root else (None, root)
        part = herring.scatter(*given)
        first = sum(uneven[:rank])
        assert np.array_equal(part, whole_of_root[first : first + uneven[rank]])

    splits = [rows + to for to in range(size)]
    sent = np.concatenate([np.full(n, 100 * rank + to, np.int32) for to, n in enumerate(splits)])
    received = herring.alltoall(sent, splits)
    expected = np.concatenate([np.full(rows + rank, 100 * r + rank, np.int32) for r in range(size)])
    assert np.array_equal(received, expected)

    for root in range(size):
        array = np.random.default_rng(rank).bytes(rows * 7)
        array = np.frombuffer(array, np.uint8).copy()
        herring.broadcast(array, root)
        assert array.tobytes() == np.random.default_rng(root).bytes(rows * 7)
# Bits travel unchanged, including those of a NaN with a payload.
odd = np.array([0x7FC12345, 0xFFFFFFFF, 0x80000001], np.uint32).view(np.float32)
odd = np.tile(odd, 20_000) if rank == 0 else np.zeros(60_000, np.float32)
herring.broadcast(odd)
assert (odd.view(np.uint32)[:3] == [0x7FC12345, 0xFFFFFFFF, 0x80000001]).all()
assert herring.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
assert herring.allgather_object("x" * rank) == ["x" * r for r in range(size)]
try:
    import cloudpickle  # noqa: F401
except ImportError:
    pass
else:  # functions that pickle refuses
    assert herring.broadcast_object(lambda x: x + rank, size - 1)(1) == size
    functions = herring.allgather_object(lambda: rank)
    assert [function() for function in functions] == list(range(size))
herring.barrier()
