"""Every collective, dtype and operator against NumPy, on every layout of workers and servers."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, REDUCTIONS, expect_success, run_job

pytestmark = pytest.mark.timeout(120)

SERVERS = """
herring.init()
# On both sides of what rides along with an announcement, and with odd tails.
check_reductions((0, 1, 3, 1000, 40_001, 300_007))
"""

OTHERS = """
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

    # Parts as they are asked for, one of them empty.
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
# Bits travel unchanged, also those of a NaN with a payload.
odd = np.array([0x7FC12345, 0xFFFFFFFF, 0x80000001], np.uint32).view(np.float32)
odd = np.tile(odd, 20_000) if rank == 0 else np.zeros(60_000, np.float32)
herring.broadcast(odd)
assert (odd.view(np.uint32)[:3] == [0x7FC12345, 0xFFFFFFFF, 0x80000001]).all()
assert herring.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
assert herring.allgather_object("x" * rank) == ["x" * r for r in range(size)]
try:
    import cloudpickle
except ImportError:
    pass
else:  # what pickle does not take
    assert herring.broadcast_object(lambda x: x + rank, size - 1)(1) == size
    functions = herring.allgather_object(lambda: rank)
    assert [function() for function in functions] == list(range(size))
herring.barrier()
"""

ROOTED = """
# What a root does with nothing, with calls that come too late, and with threads that call in
# another order on each rank.
import threading
herring.init()
rank, size = herring.rank(), herring.size()
found = herring.gather(np.empty((0, 3), np.float32), size - 1)
assert found.shape == (0, 3) if rank == size - 1 else found is None
found = herring.reduce(np.empty((0, 2), np.float32), "sum")
assert found.shape == (0, 2) if rank == 0 else found is None
everything = [2] + [0] * (size - 1)
part = herring.scatter(np.arange(2), 0, everything) if rank == 0 else herring.scatter("not read")
assert len(part) == (2 if rank == 0 else 0)
read_only = np.frombuffer(b"12345678" * size, np.uint8)
assert bytes(herring.scatter(read_only if rank == 0 else None)) == b"12345678"
if size > 1:
    if rank != 0:
        raises(herring.TimeoutError, "rank 0", herring.gather, np.ones(3), name="late", timeout=0.5)
    herring.barrier()
    if rank == 0:
        late = herring.gather, np.ones(3)
        raises(herring.TimeoutError, "which did not call it", *late, name="late")
found = herring.gather(np.full(2 + rank, rank), name="late")
assert rank > 0 or len(found) == sum(2 + r for r in range(size))
right = {}
def call(k):
    root = k % size
    total = herring.reduce(np.full(40_000, float(rank + k)), "sum", root, name=f"reduce {k}")
    whole = np.arange(5 * size) + k
    part = herring.scatter(whole if rank == root else None, root, name=f"scatter {k}")
    right[k] = np.array_equal(part, whole[5 * rank : 5 * rank + 5]) and (
        (total == sum(range(size)) + size * k).all() if rank == root else total is None
    )
threads = [threading.Thread(target=call, args=(int(k),))
           for k in np.random.default_rng(rank).permutation(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert len(right) == 12 and all(right.values()), right
"""

ORDER = """
# Ranks submit forty operations, small and large, each in an order of its own; a planned operation
# goes on beside them.
import random
herring.init()
rank, size = herring.rank(), herring.size()
planned = herring.PlannedReduction([(70_001, "float32"), (3, "float64"), (200_000, "float32")])
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(40)]
    random.Random(rank + 100 * attempt).shuffle(names)
    planned.begin()
    for i, (arena, offset, length) in enumerate(planned.placements):
        dtype = planned.arenas[arena][0]
        planned.arena(arena)[offset : offset + length].view(dtype)[:] = rank + i + attempt
    handles = []
    gradients = [0, 1, 2]
    random.Random(rank).shuffle(gradients)
    for position, name in enumerate(names):
        if position % 13 == 5:
            planned.ready(gradients[position // 13])
        array = np.full(50_000 if int(name.split(".")[1]) % 2 else 5, rank, np.int64)
        handles.append(herring.allreduce_async(array, "sum", name=name))
    random.Random(rank + 7).shuffle(handles)
    for handle in handles:
        assert (handle.wait(30) == size * (size - 1) // 2).all()
    planned.wait(30)
    for i, (arena, offset, length) in enumerate(planned.placements):
        values = planned.arena(arena)[offset : offset + length].view(planned.arenas[arena][0])
        assert (values == (size - 1) / 2 + i + attempt).all(), (i, values[:3])
    assert planned.contributors == size
# A worker without data takes part, and is no part of the average.
active = rank != size - 1 or size == 1
planned.begin(active)
if active:
    for arena, (dtype, _) in enumerate(planned.arenas):
        planned.arena(arena).view(dtype)[:] = 6.0
    for i in range(3):
        planned.ready(i)
planned.wait(30)
for arena, (dtype, _) in enumerate(planned.arenas):
    assert (planned.arena(arena).view(dtype) == 6.0).all()
assert planned.contributors == max(1, size - 1)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "script",
    [REDUCTIONS + SERVERS, OTHERS, ROOTED, ORDER],
    ids=["reductions", "others", "rooted", "order"],
)
def test_collective(layout: str, script: str) -> None:
    expect_success(run_job(LAYOUTS[layout], script, timeout=100))


# With windows this large, frames are lent to the socket, and servers use lanes again and again:
# one that was used too early would hold another round's bytes.
LENT = """
herring.init()
rank, size = herring.rank(), herring.size()
random = np.random.default_rng(5)  # the same on every rank
for attempt in range(12):
    counts = random.integers(1, 1_500_000, 3)
    bases = [random.integers(0, 1 << 20, count, dtype=np.int32) for count in counts]
    arrays = [base * (rank + 1) for base in bases]
    handles = [herring.allreduce_async(array, "sum", name=f"{attempt}.{i}")
               for i, array in enumerate(arrays)]
    for base, handle in zip(bases, handles):
        assert np.array_equal(handle.wait(60), base * (size * (size + 1) // 2)), attempt
"""


@pytest.mark.parametrize("proxies", ["1", "3"])
def test_what_was_lent_is_not_used_too_early(proxies: str) -> None:
    layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
    settings = {"HERRING_CREDIT": "512KiB", "HERRING_PROXIES": proxies, "HERRING_FLOWS": proxies}
    expect_success(run_job(layout, LENT, timeout=100, **settings))


# float32 sums whose bits depend on the order of addition.
DIGEST = """
herring.init()
rank, size = herring.rank(), herring.size()
for count in (1000, 300_001):
    source = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    source *= 10.0 ** np.random.default_rng(rank + 50).integers(-6, 6, count)
    for op in ("sum", "average"):
        array = herring.empty(count)
        own = set()
        for again in range(10):
            array[:] = source
            herring.allreduce(array, op)
            own.add(hashlib.sha256(array.tobytes()).hexdigest())
        digests = set().union(*herring.allgather_object(own))
        assert len(digests) == 1, digests
        if rank == 0:
            print("digest", op, count, *digests)
planned = herring.PlannedReduction([(100_000, "float32")] * 3, buffer_bytes=int(
    os.environ.get("TEST_BUFFER_BYTES", "0")))
planned.begin()
planned.arena(0).view("float32")[:] = np.random.default_rng(rank).standard_normal(300_000)
for i in range(3):
    planned.ready(i)
planned.wait()
if rank == 0:
    print("digest planned", hashlib.sha256(planned.arena(0).tobytes()).hexdigest())
"""


def digests(layout: list[str], **environment: str) -> list[str]:
    output = expect_success(run_job(layout, DIGEST, timeout=80, **environment))
    found = sorted(line.split("digest ")[1] for line in output.splitlines() if "digest " in line)
    assert len(found) == 5, output
    return found


@pytest.mark.timeout(300)
def test_float32_bits_do_not_depend_on_layout_or_settings() -> None:
    expected = digests(["-n", "8", "--nodes", "8", "--servers", "2"])
    others = {
        "again": (["--nodes", "8", "--servers", "2"], {}),
        "1x8": (["--nodes", "1"], {}),
        "2x4": (["--nodes", "2"], {}),
        "4x2": (["--nodes", "4", "--servers", "2"], {}),
        "1 server": (["--nodes", "8", "--servers", "1"], {}),
        "8 servers": (["--nodes", "8", "--servers", "8"], {}),
        "4 proxies": (["--nodes", "8", "--servers", "1"], {"HERRING_PROXIES": "4"}),
        "4 flows": (["--nodes", "8", "--servers", "2"], {"HERRING_FLOWS": "4"}),
        "small buffers": (["--nodes", "4", "--servers", "2"], {"TEST_BUFFER_BYTES": "65536"}),
        "other buffers": (["--nodes", "8", "--servers", "2"], {"TEST_BUFFER_BYTES": "400000"}),
        "larger credit": (["--nodes", "8", "--servers", "2"], {"HERRING_CREDIT": "256KiB"}),
        "baseline SIMD": (["--nodes", "4", "--servers", "2"], {"HERRING_SIMD": "baseline"}),
    }
    for name, (layout, environment) in others.items():
        assert digests(["-n", "8", *layout], **environment) == expected, name


BYTES = """
herring.init()
rank, count = herring.rank(), 1_000_000
array = np.full(count, float(rank), np.float32)

def moved(call):
    herring.barrier()
    before = herring.stats()
    call()
    after = herring.stats()
    return [(after[key] - before[key]) / array.nbytes for key in ("bytes_sent", "bytes_received")]

found = [
    moved(lambda: herring.broadcast(array, 1)),
    moved(lambda: herring.reduce_scatter(array)),
    moved(lambda: herring.allgather(array[: count // 4])),
    moved(lambda: herring.alltoall(array)),
]
everyone = herring.allgather_object(found)
if rank == 0:
    for name, of in zip(("broadcast", "reduce_scatter", "allgather", "alltoall"), zip(*everyone)):
        print("moved", name, *(f"{sent:.1f}/{received:.1f}" for sent, received in of))
"""


@pytest.mark.parametrize(
    ("layout", "broadcast", "reduce_scatter"),
    [
        # Each of a node's ranks moves its half for both.
        (
            ["-n", "4", "--nodes", "2", "--servers", "1"],
            "0.5/0.5 0.5/0.5 0.0/0.5 0.0/0.5",
            "0.5/0.5",
        ),
        (["-n", "4"], "0.0/0.0 0.0/0.0 0.0/0.0 0.0/0.0", "0.0/0.0"),
    ],
    ids=["two-nodes", "one-node"],
)
def test_bytes_of_exchanges_cross_once(
    layout: list[str], broadcast: str, reduce_scatter: str
) -> None:
    output = expect_success(run_job(layout, BYTES))
    moved = dict(re.findall(r"moved (\w+) (.*)", output))
    assert moved["broadcast"] == broadcast, output
    assert moved["reduce_scatter"] == " ".join([reduce_scatter] * 4), output
    if "--nodes" not in layout:
        assert moved["allgather"] == moved["alltoall"] == broadcast, output
