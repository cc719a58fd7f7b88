"""Planned rounds in which only the largest numbers travel, beside what NumPy gives.

With "kill", two servers die inside rounds.
"""

import hashlib
import os
import signal
import sys
import time

import numpy as np

import herring
from serving import await_replaced, servers
from support import tell, told

SENT = 255  # of a block

herring.init()
rank, size, nodes = herring.rank(), herring.size(), herring.num_nodes()
kills = sys.argv[1:] == ["kill"]
members = []  # by node
for r, place in enumerate(herring.allgather_object(herring.local_rank())):
    if place == 0:
        members.append([])
    members[-1].append(r)


def rounded(values):
    """Returns float32 numbers as they are in bfloat16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def largest(values, among):
    """Returns where the largest numbers are of those that are `among`; of equal ones the first."""
    order = np.argsort(-np.abs(values), kind="stable")
    return order[among[order]][:SENT]


def tree(parts):
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def block_round(sums, lost, contributors):
    """Returns the averages of one block, and leaves in `lost` what each node keeps."""
    total, named = np.zeros_like(sums[0]), np.zeros(len(sums[0]), bool)
    sent = []
    for whole, left in zip(sums, lost):
        left += whole
        chosen = largest(left, left != 0)
        values = rounded(left[chosen])
        sent.append((chosen, values))
        left[chosen] -= values
        total[chosen] += values
        named[chosen] = True
    average = total / np.float32(contributors)
    results = largest(average, named)
    for (chosen, values), left in zip(sent, lost):
        missing = ~np.isin(chosen, results)
        left[chosen[missing]] += values[missing]
    out = np.zeros_like(average)
    out[results] = rounded(average[results])
    return out


def gradient(of, step, elements):
    values = np.random.default_rng([of, step]).standard_normal(elements).astype(np.float32)
    return np.round(values) if step == 1 else values  # many equal ones


digest = hashlib.sha256()
dies = {2: 1, 4: 0} if kills else {}
for ratio in (0.005, 0.05, 0.1):
    block = round(SENT / ratio)
    sizes = [3, block, 70_001, 256]
    elements = sum(sizes)
    plan = herring.PlannedReduction(
        [(n, "float32") for n in sizes],
        name=f"top {ratio}",
        wire_dtype=herring.TopK(ratio),
        buffer_bytes=400_000,
    )
    arena = plan.arena(0).view(np.float32)
    lost = [np.zeros(elements, np.float32) for _ in members]
    given, got = np.zeros(elements), np.zeros(elements)
    before = herring.stats()
    for step in range(6):
        inactive = size > 1 and step == 3
        strikes = kills and step in dies and ratio == 0.05
        victim = servers()[dies[step]]["pid"] if strikes and rank == 0 else 0
        plan.begin(not (inactive and rank == 0))
        active = [r for r in range(size) if not (inactive and r == 0)]
        everyone = [gradient(r, step, elements) for r in range(size)]
        since = time.monotonic()
        if strikes and rank == 2:  # the servers have what the others send, and wait for this
            told(f"killed {step}")
        if rank in active:
            arena[:] = everyone[rank]
            plan.ready_all(range(len(sizes)))
        if victim:
            os.kill(victim, signal.SIGKILL)
            tell(f"killed {step}")
        plan.wait()
        if victim:
            await_replaced(dies[step], since)
        expected = np.empty_like(arena)
        for _, offset, nbytes in plan.buffers:
            for first in range(offset // 4, (offset + nbytes) // 4, block):
                part = slice(first, min(first + block, (offset + nbytes) // 4))
                present = [n for n, node in enumerate(members) if set(node) & set(active)]
                sums = [
                    tree([everyone[r][part] for r in members[n] if r in active]) for n in present
                ]
                if nodes > 1:
                    parts = [lost[n][part] for n in present]
                    expected[part] = block_round(sums, parts, len(active))
                else:
                    expected[part] = sums[0] / np.float32(len(active))
        np.testing.assert_array_equal(arena, expected)
        given += sum(everyone[r].astype(float) for r in active)
        got += arena.astype(float) * len(active)
        digest.update(arena)
        assert len(set(herring.allgather_object(digest.hexdigest()))) == 1
    sent = herring.stats()["bytes_sent"] - before["bytes_sent"]
    left = herring.allreduce(plan.residual(0).astype(float), op="sum")
    np.testing.assert_allclose(got + left, given, atol=0.2)  # nothing is lost but by rounding
    if nodes > 1 and herring.local_size() == 1:
        np.testing.assert_array_equal(plan.residual(0), lost[members.index([rank])])
    if nodes > 1 and herring.local_size() == 1 and not kills:
        assert sent < 6 * (elements * 4 * ratio + 4096 * len(plan.buffers)) + 50_000, sent
    plan.close()

# Numbers that cancel each other have arrived, so no node keeps them.
plan = herring.PlannedReduction([(8, "float32")], op="sum", wire_dtype=herring.TopK(0.1))
arena = plan.arena(0).view(np.float32)
plan.begin()
arena[:] = {0: 1, size - 1: -1}.get(rank, 0) if size > 1 else 0
plan.ready(0)
plan.wait()
assert not arena.any()
assert not plan.residual(0).any()
plan.close()

for wrong in (0, -1, 0.3, 1.5, "a lot", None):
    try:
        herring.TopK(wrong)
    except herring.InvalidArgumentError as error:
        assert "ratio" in str(error), error
    else:
        raise AssertionError(f"{wrong} was taken")
for gradients, op in (
    ([(8, "int32")], "sum"),
    ([(8, "float64")], "sum"),
    ([(8, "float32")], "min"),
):
    try:
        herring.PlannedReduction(gradients, op=op, wire_dtype=herring.TopK(0.01))
    except herring.InvalidArgumentError as error:
        assert "topk:0.01" in str(error), error
    else:
        raise AssertionError(f"{gradients} with {op} was taken")
if size > 1:
    try:
        herring.PlannedReduction([(8, "float32")], wire_dtype=herring.TopK(0.1 if rank else 0.05))
    except herring.MismatchError as error:
        assert "topk:0.05" in str(error), error
    else:
        raise AssertionError("ranks disagree about the ratio, and no rank was told")
herring.shutdown()
print("sparse rounds are right", digest.hexdigest())
