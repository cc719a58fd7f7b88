"""Notes of planned rounds: what every rank says in a round arrives at all ranks, and only there."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, run_job

pytestmark = pytest.mark.timeout(150)

# Ranks give bytes that follow from a seed, at any moment of the round, some of them nothing at all.
EVERY_BYTE = """
import random
herring.init()
rank, size = herring.rank(), herring.size()
halves = [herring.new_group(range(k, size, 2)) for k in range(min(2, size))]
many = [(40_000, "float32"), (0, "float32"), (3, "uint8")]
plans = []
for group in (None, halves[rank % 2] if size > 1 else None):
    for gradients, op, wire in (([(40_000, "float32")], "average", "bfloat16"),
                                ([(40_000, "float32"), (0, "float64")], "average", None),
                                (many, "sum", "float16"), (many, "min", None), ([], "sum", None),
                                ([(0, "float32")], "average", None)):
        for note_bytes in (size + 3, 30_001):
            plans.append((herring.PlannedReduction(
                gradients, op=op, wire_dtype=wire, group=group, note_bytes=note_bytes,
                buffer_bytes=64 << 10), group, len(gradients), note_bytes))
for number, (plan, group, gradients, length) in enumerate(plans):
    ranks = range(size) if group is None else group.ranks
    assert len(plan.placements) == gradients  # the note is not among them
    for step in range(6):
        active, notes = [], []
        for place, r in enumerate(ranks):
            seeded = random.Random(1000 * number + 10 * step + r)
            if step == 0 or (step < 5 and seeded.random() < 0.7):
                note = bytearray(length)  # a place of its own, and others' places too
                note[place] = 1 + seeded.randrange(255)
                for _ in range(5):
                    note[seeded.randrange(length)] = seeded.randrange(256)
                active.append(r)
                notes.append(note)
        plan.begin(active=rank in active)
        if rank in active:
            for arena in range(len(plan.arenas)):
                plan.arena(arena)[:] = 0
            calls = [lambda: plan.note(notes[active.index(rank)])]
            calls += [lambda i=i: plan.ready(i) for i in range(gradients)]
            random.Random(rank + step).shuffle(calls)
            for call in calls:
                call()
        plan.wait()
        expected = bytes(map(max, *notes, bytes(length))) if notes else bytes(length)
        assert plan.notes == expected, (number, step)
        assert plan.contributors == len(active), (number, step)
herring.barrier()
"""

REFUSED = """
herring.init()
bad = herring.InvalidArgumentError
plan = herring.PlannedReduction([(10, "float32")] * 2, name="p", note_bytes=3)
raises(bad, "'p': notes are available after wait() has returned", getattr, plan, "notes")
raises(bad, "'p': a note before begin()", plan.note, b"abc")
plan.begin()
raises(bad, "'p': a note of 2 bytes; this plan has 3", plan.note, b"ab")
raises(bad, "note is 7; it must be bytes", plan.note, 7)
raises(bad, "before gradients 0, 1 were ready and the note was given; call ready() for each "
       "gradient and note() once", plan.wait)
plan.note(np.arange(3, dtype=np.uint8))
raises(bad, "'p': a note twice in one round", plan.note, b"abc")
raises(bad, "gradient 2 does not exist", plan.ready, 2)
raises(bad, "before gradients 0, 1 were ready; call", plan.wait)
plan.ready_all([0, 1])
plan.wait()
assert plan.notes == bytes(range(3))
plan.begin(active=herring.rank() == 0)
raises(bad, "'p': notes are available", getattr, plan, "notes") if herring.rank() == 0 else None
if herring.rank() == 0:
    plan.ready_all([0, 1])
    raises(bad, "before the note was given", plan.wait)
    plan.note(b"xyz")
plan.wait()
assert plan.notes == b"xyz"
bare = herring.PlannedReduction([(10, "float32")], name="bare")
bare.begin()
raises(bad, "'bare': a note of 1 bytes; this plan has 0", bare.note, b"a")
raises(bad, "a note twice", bare.note, b"")
bare.ready(0)
bare.wait()
assert bare.notes == b""
raises(bad, "note_bytes", herring.PlannedReduction, [], note_bytes=-1)
if herring.size() > 1:
    raises(herring.MismatchError, "notes of 1 bytes", herring.PlannedReduction, [(1, "float32")],
           note_bytes=herring.rank())
"""

# A rank closes a plan whose gradients are all ready, but without its note.
CLOSED_WITHOUT = """
herring.init()

def begin():
    plan = herring.PlannedReduction([(10, "float32")], name="p", note_bytes=1)
    plan.begin()
    plan.ready(0)
    return plan

def whole_round():  # rank 1 may be so far ahead that any of these is told
    plan = begin()
    plan.note(b"a")
    plan.wait()

if herring.rank() == 1:
    begin().close()
    raises(herring.ShutdownError, "'p' was closed inside round 0, before the note was given",
           lambda: [herring.barrier() for _ in range(100)])
else:
    raises(herring.PeerLostError, "'p' was closed inside round 0", whole_round)
print("told", flush=True)
"""

# What lists of gradients are told in their notes.
GRADIENT_LISTS = """
from herring.arrays.gradients import GradientRounds, Source
herring.init()
rank, size = herring.rank(), herring.size()
sources = [Source(f"v{i}", (4,), "float32") for i in range(3)]
for op in ("average", "sum"):
    rounds = GradientRounds(sources, [0, 1], name=op, op=op, wire_dtype="float16")
    one = np.ones(4, np.float32)
    for step in range(3):
        averages = rounds.average([0, 1], [one * (rank + 1), one])
        total = size * (size + 1) / 2 / (size if op == "average" else 1)
        assert (averages[0] == total).all() and len(averages) == 2
        assert rounds.contributors == size
        if rank == 0:
            rounds.put([2], [one])  # it has no place
        raises(herring.InvalidArgumentError, f"{op}: rank 0 has a gradient for a variable that had "
               "none", rounds.finish, [np.float32] * 2)
        rounds.put([0], [one])
        who = "rank 1" if size == 2 else "ranks " + ", ".join(map(str, range(1, size)))
        if size > 1:  # all but rank 0 begin their step again
            raises(herring.HerringError, f"{op}: {who} gave up its step",
                   *((rounds.put, [0], [one]) if rank else (rounds.finish, [np.float32] * 2)))
        else:
            rounds.finish([np.float32] * 2)
        if rank == size - 1 and size > 1:
            rounds.shadow()
        else:
            rounds.average([0], [one])
        assert rounds.contributors == max(1, size - 1)
nothing = GradientRounds(sources, [], name="nothing")
assert nothing.average([], []) == [] and nothing.contributors == size
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(EVERY_BYTE, id="every-byte-arrives"),
        pytest.param(REFUSED, id="refused"),
        pytest.param(GRADIENT_LISTS, id="gradient-lists"),
    ],
)
def test_notes(script: str, layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], script))


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_a_plan_closed_without_its_note_fails_the_job(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], CLOSED_WITHOUT))
