"""Tests notes that are missing, too long, given twice or of a wrong type."""

import numpy as np

import herring
from support import raises

herring.init()
bad = herring.InvalidArgumentError
plan = herring.PlannedReduction([(10, "float32")] * 2, name="p", note_bytes=3)
raises(bad, "'p': notes are available after wait() has returned", getattr, plan, "notes")
raises(bad, "'p': a note before begin()", plan.note, b"abc")
plan.begin()
raises(bad, "'p': a note of 2 bytes; this plan has 3", plan.note, b"ab")
raises(bad, "note is 7; it must be bytes", plan.note, 7)
raises(
    bad,
    "before gradients 0, 1 were ready and the note was given; call ready() for each "
    "gradient and note() once",
    plan.wait,
)
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
raises(bad, "'bare': a note of 1 byte; this plan has 0", bare.note, b"a")
raises(bad, "a note twice", bare.note, b"")
bare.ready(0)
bare.wait()
assert bare.notes == b""
raises(bad, "note_bytes", herring.PlannedReduction, [], note_bytes=-1)
if herring.size() > 1:
    raises(
        herring.MismatchError,
        "notes of 1 bytes",
        herring.PlannedReduction,
        [(1, "float32")],
        note_bytes=herring.rank(),
    )
