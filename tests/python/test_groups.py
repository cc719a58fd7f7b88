"""Groups: every collective inside one, several at a time, and what a death leaves alone."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, REDUCTIONS, expect_success, run_job

pytestmark = pytest.mark.timeout(120)
SEVERAL = ["one-node", "colocated-servers", "dedicated-servers", "uneven-nodes"]

COLLECTIVES = """
herring.init()
r, n = herring.rank(), herring.size()
bad = herring.InvalidArgumentError
even, odd = herring.new_group(range(0, n, 2)), herring.new_group(range(1, n, 2))
mine, other = (odd, even) if r % 2 else (even, odd)
assert mine.ranks == tuple(range(r % 2, n, 2)) and mine.ranks[mine.rank] == r
assert other.rank is None and other.size == len(other.ranks)
for call in (herring.barrier, lambda group: herring.allreduce(np.ones(3, "f"), group=group),
             lambda group: herring.PlannedReduction([(3, "float32")], group=group)):
    raises(bad, f"rank {r} is not in group", call, group=other)
raises(bad, "it must be a herring.Group", herring.barrier, group=[0, 1])
raises(bad, "each once", herring.new_group, [r, r])
raises(bad, "at least one rank", herring.new_group, [])
raises(bad, f"0 to {n - 1}", herring.new_group, [r, n])
raises(bad, "must be a list", herring.new_group, ["one"])
raises(bad, "; ranks inside group 'group.0' are ",
       herring.broadcast, np.ones(3, "f"), mine.size, group=mine)
k, ranks = mine.rank, mine.ranks
for count in (3, 300_000):
    for algorithm in ("herring", "ring", "tree", "butterfly", "server"):
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

# Of one rank, of a node, of one rank per node, of all.
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

# Planned rounds; a group's averages are its own.
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
raises(herring.MismatchError, "ranks disagree about planned", herring.PlannedReduction,
       [(3 + k, "float32")], group=mine, name="p") if mine.size > 1 else None
plan.close()

# A partial one; and its owner is told that it ends.
herring.allreduce(np.full(1000, r, np.float32), "sum", sync="solo", group=mine, name="series")
last = herring.flush(np.zeros(1000, np.float32), name="series", group=mine)[-1]
herring.barrier(group=mine)

# Another group of the same ranks is another group: calls of one name do not meet.
twin = herring.new_group(mine.ranks, name=mine.name)
first = herring.allreduce_async(np.full(3, 1.0, np.float32), "sum", name="same", group=mine)
second = herring.allreduce_async(np.full(3, 2.0, np.float32), "sum", name="same", group=twin)
assert (second.wait() == 2 * mine.size).all() and (first.wait() == mine.size).all()
# Calls without a name are numbered in each, whichever a rank calls first.
order = [mine, twin] if k % 2 else [twin, mine]
handles = {g: herring.allreduce_async(np.full(3, 1.0 if g is mine else 2.0, np.float32), "sum",
                                      group=g) for g in order}
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
"""

AT_ONCE = """
import threading
herring.init()
r, n = herring.rank(), herring.size()
lists = [range(n), range(1, n), [x for x in range(n) if x != 1], [0, n - 1], range(n)]
groups = [g for g in (herring.new_group(ranks) for ranks in lists) if g.rank is not None]
failures = []

# Every thread a group, the world by itself; each rank begins in another order.
def work(group, number):
    try:
        ranks = range(n) if group is None else group.ranks
        for step in range(25):
            count = (10, 50_000, 700_001)[step % 3]
            array = np.full(count, r + step, np.float32)
            algorithm = ("herring", "herring", "ring")[(step // 3) % 3]
            herring.allreduce(array, "sum", name=f"{number}.{step}", group=group,
                              algorithm=algorithm)
            assert (array == sum(x + step for x in ranks)).all(), (number, step)
    except BaseException as error:
        failures.append(error)
        raise

threads = [threading.Thread(target=work, args=(g, g.name + str(g.ranks))) for g in groups]
threads.append(threading.Thread(target=work, args=(None, "world")))
np.random.default_rng(r).shuffle(threads)
[t.start() for t in threads]
[t.join() for t in threads]
assert not failures
herring.barrier()
"""

MISSED = """
herring.init()
r, n = herring.rank(), herring.size()
pair = herring.new_group([0, 1], name="pair")
if r == 0:
    raises(herring.TimeoutError, "of group 'pair' (ranks 0-1) waited", herring.barrier,
           group=pair, timeout=0.3)
    raises(herring.TimeoutError, "form_group 'never'", herring.new_group, [0, 2], name="never",
           timeout=0.3)
herring.barrier()
if r == 0:
    raises(herring.MismatchError, "of group 'pair' (ranks 0-1): rank 0: allreduce of float32 [3]",
           herring.allreduce, np.ones(3, "f"), group=pair)
    raises(herring.InvalidArgumentError, "was refused by rank 1", herring.allreduce,
           np.ones(3, "f"), group=pair)
elif r == 1:
    raises(herring.TimeoutError, "waited", herring.barrier, group=pair)
    raises(herring.MismatchError, "rank 1: allreduce of float32 [4]", herring.allreduce,
           np.ones(4, "f"), group=pair)
    raises(herring.InvalidArgumentError, "not supported", herring.allreduce, np.ones(3, complex),
           group=pair)
else:
    raises(herring.TimeoutError, "waited", herring.new_group, [0, 2], name="never")
herring.barrier()
if r == 0:
    pair.destroy()
herring.barrier()
if r == 1:
    raises(herring.PeerLostError, "has destroyed the group", herring.barrier, group=pair)
herring.barrier()
"""

# The last rank dies, or its machine's server with it; in the midst of large operations if `moves`.
DEATH = """
herring.init()
r, n = herring.rank(), herring.size()
victim, count = n - 1, COUNT
rest = list(range(n - 1))
made = {"doomed": [0, victim], "rest": rest, "pair": rest[-2:]}
groups = {name: herring.new_group(ranks, name=name) for name, ranks in made.items()}
plan = herring.PlannedReduction([(count, "float32")], op="sum")
herring.barrier()
if r == victim:
    if BEGINS:  # what it has called may complete, or not
        begun = [herring.allreduce_async(np.ones(count, np.float32), "sum", name="world"),
                 herring.allreduce_async(np.ones(count, np.float32), "sum", name="ring",
                                         algorithm="ring"),
                 herring.allreduce_async(herring.empty(count), "sum", name="d",
                                         group=groups["doomed"])]
        begun[0].wait()
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
lost = herring.PeerLostError
def keep_on(step):
    for name in ("rest", "pair"):
        group = groups[name]
        if group.rank is None:
            continue
        array = herring.empty(count)
        array[:] = r + step
        herring.allreduce(array, "sum", group=group, algorithm=("herring", "ring")[step % 2])
        assert (array == sum(x + step for x in group.ranks)).all(), (name, step)
def run_round():
    plan.begin()
    plan.ready(0)
    plan.wait()
# All in flight at once; some may know of the death before they call.
calls = [lambda: herring.allreduce_async(np.ones(count, np.float32), "sum", name="world"),
         lambda: herring.allreduce_async(np.ones(count, np.float32), "sum", name="ring",
                                         algorithm="ring")]
if r == 0:
    calls.append(lambda: herring.allreduce_async(herring.empty(count), "sum", name="d",
                                                 group=groups["doomed"]))
handles = []
for call in calls:
    try:
        handles.append(call())
    except lost as error:
        assert f"rank {victim} (" in str(error), error
keep_on(0)
for handle in handles:
    try:
        handle.wait()
    except lost as error:
        assert f"rank {victim} (" in str(error), error
    else:
        assert BEGINS
raises(lost, f"rank {victim} (", run_round)
assert time.monotonic() - start < 20
for step in range(1, 11):
    keep_on(step)
raises(lost, "", herring.barrier)
raises(lost, "", herring.new_group, [r, victim])
late = herring.new_group(rest)
array = np.full(count, 1.0, np.float32)
assert (herring.allreduce(array, "sum", group=late) == len(rest)).all()
series = herring.PartialReduction(1000, "float32", sync="solo", group=late)
list(series.flush(np.ones(1000, np.float32)))
late.destroy()
print("went on", r, flush=True)
"""


# A member, or its machine's server with it, dies while groups are being formed, in any state.
FORMING = """
herring.init()
r, n = herring.rank(), herring.size()
victim = n - 1
rest = herring.new_group(range(n - 1)) if r != victim else None
herring.barrier()
for number in range(1000):
    if r == victim and number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        herring.new_group(range(n), name=f"g{number}")
    except herring.PeerLostError as error:
        assert f"rank {victim} (" in str(error), error
        assert time.monotonic() - start < 20, error
        break
assert 19 <= number < 999, number  # 19: formed where the victim was, not yet everywhere
array = np.full(100_000, 1.0, np.float32)
assert (herring.allreduce(array, "sum", group=rest) == n - 1).all()
print("went on", r, flush=True)
"""


@pytest.mark.parametrize("options", [[], ["--servers", "1"]], ids=["colocated", "mixed"])
def test_a_death_while_groups_are_formed(options: list[str]) -> None:
    done = run_job(["-n", "3", "--nodes", "3", *options, "--keep-going"], FORMING)
    assert done.stdout.count("went on") == 2, done.stdout
    assert "AssertionError" not in done.stdout, done.stdout


@pytest.mark.parametrize("layout", SEVERAL)
def test_every_collective_in_a_group(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], REDUCTIONS + COLLECTIVES))


@pytest.mark.parametrize("layout", SEVERAL)
def test_groups_that_overlap_work_at_the_same_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], AT_ONCE))


def test_who_is_missed_in_a_group_is_named_and_the_others_go_on() -> None:
    expect_success(run_job(LAYOUTS["colocated-servers"], MISSED))


@pytest.mark.parametrize(("count", "begins"), [(1000, False), (2_000_000, True)])
@pytest.mark.parametrize(
    "layout",
    [
        ["-n", "4"],
        ["-n", "4", "--nodes", "2"],
        ["-n", "4", "--nodes", "4"],
        ["-n", "4", "--nodes", "2", "--servers", "2"],
        ["-n", "4", "--nodes", "4", "--servers", "1"],
    ],
    ids=["one-node", "two-nodes", "with-its-server", "dedicated", "mixed"],
)
def test_a_death_fails_the_groups_it_was_in_and_no_others(
    layout: list[str], begins: bool, count: int
) -> None:
    script = DEATH.replace("COUNT", str(count)).replace("BEGINS", str(begins))
    done = run_job([*layout, "--keep-going"], script)
    assert done.stdout.count("went on") == 3, done.stdout
    assert "AssertionError" not in done.stdout, done.stdout
