"""What ranks keep for each other ends with the plans, series, groups and names it belongs to.

Each kind of operation is made, used and closed again and again. While all ranks rest, nothing is
kept. Then rank 1 stands still with a result that it has not read: what the others keep of it stays.
"""

import re

import numpy as np

import herring
from herring.arrays.runtime import job
from support import tell, told, until, when_stopped

ELEMENTS = 300_000
KINDS = ("plans", "plans of groups", "series", "small series", "calls", "names of groups")


def kept() -> int:
    """Returns how many bytes this rank keeps for others."""
    return herring.stats()["kept_bytes"]


def private() -> int:
    """Returns the private memory of this process, in bytes."""
    with open("/proc/self/smaps_rollup") as lines:
        return 1024 * sum(map(int, re.findall(r"Private_(?:Clean|Dirty):\s+(\d+)", lines.read())))


def use_plan(name: str, group: herring.Group | None = None) -> None:
    """Makes, uses and closes a plan."""
    plan = herring.PlannedReduction([(ELEMENTS, "float32")], name=name, op="sum", group=group)
    begin(plan)
    end(plan, group)
    plan.close()


def values_of(plan: herring.PlannedReduction) -> np.ndarray:
    """Returns the gradient of a plan of one."""
    ((arena, offset, _),) = plan.placements
    return plan.arena(arena).view(np.float32)[offset // 4 :][:ELEMENTS]


def begin(plan: herring.PlannedReduction) -> None:
    """Gives this rank's part of a round."""
    plan.begin()
    values_of(plan)[:] = 1 + herring.rank()
    plan.ready(0)


def end(plan: herring.PlannedReduction, group: herring.Group | None = None) -> None:
    """Waits for the result of the round."""
    plan.wait()
    ranks = range(herring.size()) if group is None else group.ranks
    assert (values_of(plan) == sum(1 + one for one in ranks)).all()


def use_series(name: str, elements: int) -> None:
    """Makes two rounds of a series, and ends it."""
    series = herring.PartialReduction(elements, "float32", sync="majority", name=name)
    series.allreduce(np.ones(elements, np.float32))
    list(series.flush(np.ones(elements, np.float32)))


def use_all(kind: str, turn: int) -> None:
    """Makes, uses and closes three of a kind."""
    for number in range(3):
        name = f"{kind} {turn} {number}"
        if kind == "plans":
            use_plan(name)
        elif kind.endswith("groups"):
            group = herring.new_group(range(herring.size()), name=name)
            if kind.startswith("plans"):
                use_plan(name, group)
            else:
                herring.allreduce(np.ones(ELEMENTS, np.float32), name="large", group=group)
                herring.allreduce(np.ones(100, np.float32), name="small", group=group)
            herring.barrier(group=group)
            group.destroy()
        elif kind.endswith("series"):
            use_series(name, 100 if kind.startswith("small") else ELEMENTS)
        else:
            herring.allreduce(np.ones(ELEMENTS, np.float32), name=name)
            herring.allreduce(np.ones(100, np.float32), name=f"{name} small")
            herring.broadcast(np.ones(ELEMENTS, np.float32), 0, name=f"{name} broadcast")


def rest() -> None:
    """Waits until nothing is kept."""
    until(lambda: kept() == 0)


herring.init()
sizes = []
for turn in range(9):
    for kind in KINDS:
        use_all(kind, turn)
        if turn % 3 == 0:
            rest()
    rest()
    sizes.append(private())
# Each turn keeps 20 MB if nothing ends.
assert sizes[-1] < sizes[2] + 40e6, sizes


def pushed(round_number: int) -> int:
    """Returns how many buffers of a round of the plan "unread" this rank has pushed."""
    return sum(
        one["name"] == "unread" and one["kind"] == "buffer" and one["round"] == round_number
        for one in job().recorded()
        if one["pushed"] is not None
    )


# Rank 1 has given its part of a round, and stands still before it has heard that the round is over.
# On a node of its own, so that nobody needs it for anything else.
rank, size = herring.rank(), herring.size()
if size == herring.num_nodes():
    ELEMENTS = 1000
    others = herring.new_group([one for one in range(size) if one != 1], name="others")
    plan = herring.PlannedReduction([(ELEMENTS, "float32")], name="unread", op="sum")
    begin(plan)
    end(plan)
    rest()
    herring.barrier()
    if rank == 1:
        begin(plan)
        until(lambda: pushed(1) == pushed(0))
    # Each server answers for some of these names, so what rank 1 has pushed has come to each.
    for name in range(16):
        herring.barrier(name=f"barrier {name}")
    if rank == 1:
        when_stopped(lambda: (tell("stands still"), told(*(f"{one} rests" for one in (0, 2)))))
        end(plan)
        plan.close()
    else:
        told("stands still")
        begin(plan)
        end(plan)
        plan.close()
        unread = kept()
        assert unread > 0
        # What the others alone have used is settled later, and goes all the same.
        use_plan("later", others)
        until(lambda: kept() <= unread)
        assert kept() > 0
        tell(f"{rank} rests")
rest()
herring.barrier()
rest()
print("rank", rank, "keeps nothing", flush=True)
