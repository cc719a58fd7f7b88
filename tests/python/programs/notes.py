"""Ranks give notes of seeded random bytes, or no note, at any moment of a round."""

import functools
import random

import herring

herring.init()
rank, size = herring.rank(), herring.size()
halves = [herring.new_group(range(k, size, 2)) for k in range(min(2, size))]
many = [(40_000, "float32"), (0, "float32"), (3, "uint8")]
plans = []
for group in (None, halves[rank % 2] if size > 1 else None):
    for gradients, op, wire in (
        ([(40_000, "float32")], "average", "bfloat16"),
        ([(40_000, "float32"), (0, "float64")], "average", None),
        (many, "sum", "float16"),
        (many, "min", None),
        ([], "sum", None),
        ([(0, "float32")], "average", None),
    ):
        for note_bytes in (size + 3, 30_001):
            plans.append(
                (
                    herring.PlannedReduction(
                        gradients,
                        op=op,
                        wire_dtype=wire,
                        group=group,
                        note_bytes=note_bytes,
                        buffer_bytes=64 << 10,
                    ),
                    group,
                    len(gradients),
                    note_bytes,
                )
            )
for number, (plan, group, gradients, length) in enumerate(plans):
    ranks = range(size) if group is None else group.ranks
    assert len(plan.placements) == gradients  # the note has no placement
    for step in range(6):
        active, notes = [], []
        for place, r in enumerate(ranks):
            seeded = random.Random(1000 * number + 10 * step + r)
            if step == 0 or (step < 5 and seeded.random() < 0.7):
                note = bytearray(length)  # also writes at other ranks' places
                note[place] = 1 + seeded.randrange(255)
                for _ in range(5):
                    note[seeded.randrange(length)] = seeded.randrange(256)
                active.append(r)
                notes.append(note)
        plan.begin(active=rank in active)
        if rank in active:
            for arena in range(len(plan.arenas)):
                plan.arena(arena)[:] = 0
            calls = [functools.partial(plan.note, notes[active.index(rank)])]
            calls += [functools.partial(plan.ready, i) for i in range(gradients)]
            random.Random(rank + step).shuffle(calls)
            for call in calls:
                call()
        plan.wait()
        expected = bytes(map(max, *notes, bytes(length))) if notes else bytes(length)
        assert plan.notes == expected, (number, step)
        assert plan.contributors == len(active), (number, step)
herring.barrier()
