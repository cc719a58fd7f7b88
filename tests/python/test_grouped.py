"""Grouped collectives: a list of arrays as one operation, all of them or none."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, run_job

pytestmark = pytest.mark.timeout(120)

COMMON = """
import threading
herring.init()
rank, size = herring.rank(), herring.size()
DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
SHAPES = [(), (0,), (1,), (3, 5), (1000,), (7, 11, 13), (60_000,)]

def listed(seed, dtypes=DTYPES, shapes=SHAPES):
    # Integers that every dtype holds exactly, also summed up.
    random = np.random.default_rng(seed)
    places = random.permutation(len(dtypes) * len(shapes))
    return [np.asarray(np.random.default_rng([seed, p]).integers(0, 2, shapes[p % len(shapes)])
                       .astype(dtypes[p // len(shapes)])) for p in places]

def on(r, arrays):
    odd = r % 2 == 1
    return [np.asarray((1 - a.astype(np.int8) if odd else a).astype(a.dtype)) for a in arrays]

def same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert np.asarray(a).dtype == b.dtype and np.array_equal(a, b), (a, b)
"""

EVERYTHING = """
base = listed(3)
everyone = [on(r, base) for r in range(size)]
for op in ("sum", "max"):
    mine = [a.copy() for a in everyone[rank]]
    total = [np.sum(those, 0, dtype=np.float64) if op == "sum" and those[0].dtype != bool
             else np.max(those, 0) for those in zip(*everyone)]
    total = [np.asarray(t).astype(a.dtype) for t, a in zip(total, base)]
    assert all(a is b for a, b in zip(herring.grouped_allreduce(mine, op), mine))
    same(mine, total)
floats = ["float32", "float64", "float16"]
few = listed(4, floats)
mine = [a.copy() for a in on(rank, few)]
herring.grouped_allreduce(mine, "average", prescale=size, postscale=2.0)
stacks = zip(*[on(r, few) for r in range(size)])
same(mine, [np.asarray(2 * np.sum(those, 0)).astype(a.dtype) for those, a in zip(stacks, few)])

# Every time the same bits; as large single ones do it, whose way the dtypes of a large list take.
loose = [np.random.default_rng([rank, i]).standard_normal(n).astype(t)
         for i, (n, t) in enumerate([(10, "f4"), (40_001, "f8"), (3, "f2"), (200_000, "f4")])]
copies, again = [a.copy() for a in loose], [a.copy() for a in loose]
herring.grouped_allreduce(loose, "sum")
herring.grouped_allreduce(again, "sum")
same(loose, again)
for copy in copies[1:3]:
    herring.allreduce(copy, "sum")
same(loose[1:2], copies[1:2])
assert np.allclose(loose[2], copies[2], atol=0.01)

rows = [a.reshape(a.shape or (1,)) for a in everyone[rank]]
ragged = [np.repeat(a, 1 + rank, axis=0) for a in rows]
gathered = herring.grouped_allgather(ragged)
same(gathered, [np.concatenate([np.repeat(everyone[r][i].reshape(a.shape), 1 + r, axis=0)
                                for r in range(size)]) for i, a in enumerate(rows)])

parts = herring.grouped_reduce_scatter(rows, "max")
def part(a):
    n = len(a)
    first = rank * (n // size) + min(rank, n % size)
    return a[first : first + n // size + (rank < n % size)]
same(parts, [part(np.max([e[i].reshape(a.shape) for e in everyone], 0))
             for i, a in enumerate(rows)])
same(rows, [a.reshape(a.shape or (1,)) for a in on(rank, base)])

for root in range(size):
    mine = [a.copy() for a in everyone[rank]]
    herring.grouped_broadcast(mine, root)
    same(mine, everyone[root])

# Nothing is something, too.
assert herring.grouped_allreduce([]) == [] == herring.grouped_allgather([])
assert herring.grouped_broadcast([]) == [] == herring.grouped_reduce_scatter([])
assert herring.grouped_allreduce_async([]).wait(30) == []

# Other kinds of arrays; memory that is shared already; several in flight, ranks in other orders.
shared = herring.empty((3, 30_000))
shared[:] = rank
import array
plain = array.array("d", [rank, 1.0])
herring.grouped_allreduce([shared, plain, bytearray(4)], "sum")
assert (shared == sum(range(size))).all() and list(plain) == [sum(range(size)), size]
names = [str(i) for i in range(12)]
np.random.default_rng(rank).shuffle(names)
handles = {}
for n in names:
    handles[n] = herring.grouped_allreduce_async(
        [np.full(int(n) * 9000, rank, np.int64), np.full(3, rank, np.float32)], "sum", name=n)
for n in reversed(names):
    assert isinstance(handles[n], herring.Handle)
    for found in handles[n].wait(30):
        assert (found == sum(range(size))).all()
    assert handles[n].done() and handles[n].exception() is None

# Without anybody who waits, results come all the same.
mine = [np.full(50_000, rank, np.float32), np.full(2, rank, np.int32)]
there = threading.Event()
herring.grouped_allreduce_async(mine, "sum", name="dropped").add_done_callback(
    lambda h: h.wait() is not None and there.set())
assert there.wait(30) and all((a == sum(range(size))).all() for a in mine)
mine = [np.full(50_000, rank, np.float32), np.full(2, rank, np.int32)]
herring.grouped_allreduce_async(mine, "sum", name="forgotten")
deadline = time.monotonic() + 30
while not all((a == sum(range(size))).all() for a in mine):
    assert time.monotonic() < deadline
    time.sleep(0.01)

if size > 2:
    group = herring.new_group([0, size - 1])
    if group.rank is not None:
        mine = [np.full(4, rank, np.float64), np.full((2, 2), rank, np.int16)]
        herring.grouped_allreduce(mine, "sum", group=group)
        assert all((a == size - 1).all() for a in mine)
        herring.grouped_broadcast(mine, 1, group=group)
        assert herring.grouped_allgather(mine, group=group)[1].shape == (4, 2)
        assert herring.grouped_reduce_scatter(mine, "sum", group=group)[1].shape == (1, 2)
herring.barrier()
"""

DIFFERENT = """
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
    lambda arrays, name: herring.grouped_allreduce_async(arrays, "sum", name=name).wait(60),
    lambda arrays, name: herring.grouped_reduce_scatter(arrays, "sum", name=name),
    lambda arrays, name: herring.grouped_allgather(arrays, name=name),
    lambda arrays, name: herring.grouped_broadcast(arrays, name=name),
]
begin = time.monotonic()
for n, call in enumerate(calls):
    for what, arrays in lists():
        if n == 3 and what == "total":
            continue  # that is what gathering is for
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
        # The name is as good as new, also for more dtypes than before.
        mine = [np.full(3, rank, t) for t in ("float32", "int64", "int8", "float64")]
        for found in herring.grouped_allreduce(mine, "sum", name="g", timeout=20):
            assert (found == size * (size - 1) // 2).all()
        herring.grouped_reduce_scatter(mine, "sum", name="g")
        herring.grouped_broadcast(mine, name="g")
assert time.monotonic() - begin < 50, "somebody has waited for a time-out"
raises(herring.HerringError, "", herring.grouped_broadcast, [np.ones(1)], 0 if rank else last)
print(text)
"""

REFUSED = """
# What one rank cannot do, nobody does.
def on_last(value, other):
    return value if rank == size - 1 else other
read_only = np.ones(3)
read_only.flags.writeable = False
strided = np.ones((4, 4))[:, 1:3]
class Odd:
    def __iter__(self):
        raise OSError("out of ideas")
cases = [(read_only, "array 1 of the list: the array is read-only"),
         (strided, "array 1 of the list: the array is not contiguous"),
         (np.array(["x"]), "array 1 of the list"),
         ("text", "array 1 of the list: expected an array")]
for bad, text in cases:
    good = np.full(5, rank, np.float32)
    for call in (herring.grouped_allreduce, herring.grouped_broadcast):
        raises(herring.InvalidArgumentError, text, call, [good, on_last(bad, np.ones(3))], name="r")
    if bad is not read_only:
        for call in (herring.grouped_allgather, herring.grouped_reduce_scatter):
            raises(herring.InvalidArgumentError, text, call, [good, on_last(bad, np.ones(3))])
    assert (good == rank).all()
    assert (herring.grouped_allreduce([good, np.ones(2, np.int8)], "max", name="r")[0] == size - 1
            ).all()
good = np.full(5, rank, np.float32)
with_kind = herring.InvalidArgumentError if rank < size - 1 else OSError
raises(with_kind, "out of ideas", herring.grouped_allreduce, on_last(Odd(), [good]), name="r")
raises(herring.InvalidArgumentError, "not one array", herring.grouped_allreduce,
       on_last(good, [good]), name="r")
raises(herring.InvalidArgumentError, "array 1 of the list: op 'average'", herring.grouped_allreduce,
       [good, np.ones(3, np.int32)])
raises(herring.InvalidArgumentError, "array 0", herring.grouped_allreduce,
       [np.ones(3, np.int32)], "sum", prescale=2.0)
raises(herring.InvalidArgumentError, "nonsense", herring.grouped_allreduce, [good], "nonsense")
raises(herring.InvalidArgumentError, "dimension", herring.grouped_allgather, [np.array(1.0)])
raises(herring.InvalidArgumentError, "dimension", herring.grouped_reduce_scatter, [np.array(1.0)])
raises(herring.InvalidArgumentError, "root", herring.grouped_broadcast, [good], size)
raises(herring.InvalidArgumentError, "timeout", herring.grouped_allreduce, [good], timeout=-1)
# Too late.
mine = [np.full(5, rank, np.float32), np.full(2, rank, np.int32)]
late = dict(op="sum", name="late", timeout=0.7)
if rank == 0:
    herring.barrier()
    raises(herring.TimeoutError, "rank 0", herring.grouped_allreduce, mine, **late)
else:
    raises(herring.TimeoutError, "rank 0", herring.grouped_allreduce, mine, **late)
    herring.barrier()
assert all((a == rank).all() for a in mine)
late["timeout"] = 30
assert all((a == sum(range(size))).all() for a in herring.grouped_allreduce(mine, **late))
# For now, and not for ever.
mine = [np.full(5, rank, np.float32), np.full(2, rank, np.int32)]
if rank == 0:
    handle = herring.grouped_allreduce_async(mine, "sum", name="slow")
    raises(herring.TimeoutError, "goes on", handle.wait, 0.1)
    raises(herring.InvalidArgumentError, "timeout", handle.wait, 0)
    assert not handle.done() and all((a == rank).all() for a in mine)
    herring.barrier()
else:
    herring.barrier()
    handle = herring.grouped_allreduce_async(mine, "sum", name="slow")
assert all((a == sum(range(size))).all() for a in handle.wait())
herring.barrier()
"""

TORCH = """
import torch
weights = torch.full((4, 3), float(rank), requires_grad=True)
tensors = [torch.full((5,), rank, dtype=torch.bfloat16), torch.full((2, 2), rank),
           weights.detach(), torch.full((70_000,), 1.5 * rank, dtype=torch.bfloat16),
           torch.tensor(float(rank)), np.full(3, rank, np.float32)]
version = weights._version
total = sum(range(size))
found = herring.grouped_allreduce(tensors, "sum")
assert all(a is b for a, b in zip(found, tensors)) and weights._version > version
for tensor, factor in zip(tensors, (1, 1, 1, 1.5, 1, 1)):
    assert (tensor == factor * total).all(), tensor
bits = herring.grouped_allgather([tensors[0], torch.full((rank,), 2, dtype=torch.bfloat16)])
assert bits[0].dtype == np.uint16 and len(bits[0]) == 5 * size and len(bits[1]) == total
assert (torch.from_numpy(bits[1].view(np.int16)).view(torch.bfloat16) == 2).all()
part, = herring.grouped_reduce_scatter([torch.ones(2 * size, dtype=torch.bfloat16)], "sum")
assert (torch.from_numpy(part.view(np.int16)).view(torch.bfloat16) == size).all()
mine = [torch.full((3,), rank, dtype=torch.bfloat16), torch.full((3,), rank)]
herring.grouped_broadcast(mine, size - 1)
assert all((t == size - 1).all() for t in mine)
strided = torch.ones(4, 4).t()[1:]
raises(herring.InvalidArgumentError, "array 0 of the list", herring.grouped_allreduce, [strided])
"""

# A worker dies while the list is under way: what fails has changed nothing.
DEATH = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mine = [np.full(1_500_000, rank, np.float32), np.full(200_000, rank, np.int32)]
herring.grouped_allreduce(mine, "sum", name="good")
for n in range(1000):
    before = [a[0] for a in mine]
    if rank == size - 1 and n == 3:
        handle = herring.grouped_allreduce_async(mine, "sum", name="bad")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        herring.grouped_allreduce(mine, "sum", name="bad" if n == 3 else str(n))
    except herring.PeerLostError:
        assert all((a == b).all() for a, b in zip(mine, before))
        print("survived", flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_of_everything(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], COMMON + EVERYTHING, timeout=100))


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_different_lists_change_nothing(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], COMMON + DIFFERENT, timeout=100))


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_what_one_rank_refuses_changes_nothing(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], COMMON + REFUSED, timeout=100))


@pytest.mark.parametrize("layout", ["alone", "dedicated-servers"])
def test_tensors(layout: str) -> None:
    pytest.importorskip("torch")
    expect_success(run_job(LAYOUTS[layout], COMMON + TORCH, timeout=100))


def test_a_death_changes_nothing_where_it_fails() -> None:
    job = run_job(["-n", "3", "--nodes", "3"], COMMON + DEATH, grace=8)
    assert job.stdout.count("survived") == 2, job.stdout[-4000:]
