"""Tests collectives in groups: of one rank, of a node, of one rank per node, of all ranks."""

import numpy as np

import herring
from reductions import check_reductions
from support import raises

herring.init()
r, n = herring.rank(), herring.size()
bad = herring.InvalidArgumentError
even, odd = herring.new_group(range(0, n, 2)), herring.new_group(range(1, n, 2))
mine, other = (odd, even) if r % 2 else (even, odd)
assert mine.ranks == tuple(range(r % 2, n, 2)) and mine.ranks[mine.rank] == r
assert other.rank is None and other.size == len(other.ranks)
for call in (
    herring.barrier,
    lambda group: herring.allreduce(np.ones(3, "f"), group=group),
    lambda group: herring.PlannedReduction([(3, "float32")], group=group),
):
    raises(bad, f"rank {r} is not in group", call, group=other)
raises(bad, "it must be a herring.Group", herring.barrier, group=[0, 1])
raises(bad, "each once", herring.new_group, [r, r])
raises(bad, "at least one rank", herring.new_group, [])
raises(bad, f"0 to {n - 1}", herring.new_group, [r, n])
raises(bad, "must be a list", herring.new_group, ["one"])
raises(
    bad,
    "; ranks inside group 'group.0' are ",
    herring.broadcast,
    np.ones(3, "f"),
    mine.size,
    group=mine,
)
k, ranks = mine.rank, mine.ranks
for count in (3, 300_000):
    for algorithm in ("herring", "ring", "tree", "butterfly", "doubling", "server"):
        array = np.full(count, r + 1.0, np.float32)
        herring.allreduce(array, group=mine, algorithm=algorithm)
        assert (array == np.float32(sum(x + 1 for x in ranks)) / np.float32(mine.size)).all()
    gathered = herring.allgather(np.full((r + 1, count), r, np.int32), group=mine)
    assert [int(row[0]) for row in gathered] == [x for x in ranks for _ in range(x + 1)]
    root = mine.size - 1
    copied = herring.broadcast(np.full(count, r, np.int64), root, group=mine)
    assert (copied == ranks[root]).all()
    part = herring.reduce_scatter(np.full((mine.size * 2, count), r, np.float32), "sum", group=mine)
    assert part.shape == (2, count) and (part == sum(ranks)).all()
    moved = herring.alltoall(np.full((mine.size, count), r, np.float32), group=mine)
    assert tuple(moved[:, 0]) == ranks
    total = herring.reduce(np.full((2, count), r, np.float64), "sum", root, group=mine)
    assert (total == sum(ranks)).all() if k == root else total is None
    found = herring.gather(np.full((1, count), r, np.int8), root, group=mine)
    assert tuple(found[:, 0]) == ranks if k == root else found is None
    rows = np.arange(mine.size * count).reshape(mine.size, count) if k == root else None
    assert herring.scatter(rows, root, group=mine)[0, 0] == k * count
assert herring.allgather_object(("x", r), group=mine) == [("x", x) for x in ranks]
assert herring.broadcast_object(("x", r), root, group=mine) == ("x", ranks[root])
herring.barrier(group=mine)

# Groups of one rank, of a node, of one rank per node, and of all ranks.
with herring.new_group([r]) as alone:
    assert alone.size == 1 and alone.rank == 0
    array = np.full(5, 2.0, np.float32)
    assert herring.allreduce(array, "sum", prescale=3, group=alone) is array and (array == 6).all()
    assert (herring.allgather(np.arange(4), group=alone) == np.arange(4)).all()
    assert (herring.reduce_scatter(np.arange(4.0), "sum", group=alone) == np.arange(4)).all()
    assert (herring.alltoall(np.arange(4), group=alone) == np.arange(4)).all()
    assert herring.broadcast_object("o", group=alone) == "o"
    herring.barrier(group=alone)
raises(bad, "was destroyed", herring.barrier, group=alone)
node = herring.new_group(herring.ranks_of_node(), name="node")
assert r in node.ranks and node.size == herring.local_size()
shared = herring.empty(200_000)
shared[:] = r
herring.allreduce(shared, "sum", group=node)
assert (shared == sum(node.ranks)).all()
heads = herring.new_group([herring.ranks_of_node(x)[0] for x in range(herring.num_nodes())])
if heads.rank is not None:
    array = np.full(200_000, r, np.float32)
    herring.allreduce(array, "max", group=heads)
    assert (array == heads.ranks[-1]).all()
raises(bad, "the job's nodes", herring.ranks_of_node, herring.num_nodes())
world = herring.new_group(range(n))
check_reductions((7, 40_001), group=world)

# In planned rounds, averages are over the members of the group.
plan = herring.PlannedReduction([(1000, "float32"), (300_000, "float32")], group=mine)
for step in range(3):
    plan.begin(active=step != 1 or k == 0)
    if step != 1 or k == 0:
        plan.arena(0).view(np.float32)[:] = r + step
        plan.ready_all([1, 0])
    plan.wait()
    counted = ranks if step != 1 else ranks[:1]
    assert plan.contributors == len(counted)
    expected = np.float32(sum(x + step for x in counted)) / np.float32(len(counted))
    assert (plan.arena(0).view(np.float32) == expected).all()
raises(
    herring.MismatchError,
    "Every rank must pass the same; look for code that depends on the rank",
    herring.PlannedReduction,
    [(3 + k, "float32")],
    group=mine,
    name="p",
) if mine.size > 1 else None
plan.close()

# A partial all-reduce in the group, whose owner is told when the series ends.
herring.allreduce(np.full(1000, r, np.float32), "sum", sync="solo", group=mine, name="series")
last = herring.flush(np.zeros(1000, np.float32), name="series", group=mine)[-1]
herring.barrier(group=mine)

# In two groups of the same ranks, calls of the same name do not meet.
twin = herring.new_group(mine.ranks, name=mine.name)
first = herring.allreduce_async(np.full(3, 1.0, np.float32), "sum", name="same", group=mine)
second = herring.allreduce_async(np.full(3, 2.0, np.float32), "sum", name="same", group=twin)
assert (second.wait() == 2 * mine.size).all() and (first.wait() == mine.size).all()
# Calls without a name are numbered per group, so ranks may call the groups in any order.
order = [mine, twin] if k % 2 else [twin, mine]
handles = {
    g: herring.allreduce_async(np.full(3, 1.0 if g is mine else 2.0, np.float32), "sum", group=g)
    for g in order
}
assert (handles[mine].wait() == mine.size).all()
assert (handles[twin].wait() == 2 * mine.size).all()
if k == 0:
    pending = herring.allreduce_async(np.ones(3, np.float32), name="in flight", group=twin)
    if mine.size > 1:
        raises(bad, "still in flight", twin.destroy)
herring.barrier(group=mine)
if k != 0:
    pending = herring.allreduce_async(np.ones(3, np.float32), name="in flight", group=twin)
pending.wait()
twin.destroy()
twin.destroy()
herring.barrier()
