"""Planned rounds in 8 bits, compared to the bit with what torch's 8-bit types and NumPy give.

"few" leaves out what does not depend on the number of nodes.
"""

import itertools
import sys

import numpy as np
import torch

import herring

herring.init()
rank, size = herring.rank(), herring.size()
members = []  # by node
for r, place in enumerate(herring.allgather_object(herring.local_rank())):
    if place == 0:
        members.append([])
    members[-1].append(r)

# The largest number, and the half of a step above it, which the 8-bit types of torch clip.
LARGEST = {"fp8": (448, 16), "fp8_e5m2": (57344, 4096), "int8": (127 / 64, 1 / 128)}
FLOATS = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
# Each type both ways, and some with another one for averages.
WIRES = [(wire, wire) for wire in LARGEST]
WIRES += [("fp8", "bfloat16"), ("int8", "float16"), ("fp8_e5m2", "float32")]


def rounded(values, wire):
    """Returns float64 values as they lie in 8 bits, and back, without a scale."""
    if wire == "int8":
        return np.round(values * 64) / 64
    return (
        torch.from_numpy(values.astype(np.float32)).to(FLOATS[wire]).float().numpy().astype(float)
    )


def as_sent(numbers, wire):
    """Returns float32 numbers as they arrive: each 32 have the smallest scale that holds them."""
    padded = np.zeros(-(-len(numbers) // 32) * 32, np.float32)
    padded[: len(numbers)] = numbers
    blocks = padded.reshape(-1, 32).astype(float)
    out = np.empty_like(blocks)
    for i, block in enumerate(blocks):
        if not np.isfinite(block).all():
            out[i] = np.nan
            continue
        largest = np.abs(block).max()
        exponent = -127 if largest == 0 else max(int(np.frexp(largest)[1]) - 24, -127)
        number, half = LARGEST[wire]
        even = wire == "fp8"  # its largest number is even, so the middle is rounded to it
        while largest > (most := (number + half) * 2.0**exponent) or (largest == most and not even):
            exponent += 1
        out[i] = rounded(block * 2.0**-exponent, wire) * 2.0**exponent
    return out.reshape(-1)[: len(numbers)].astype(np.float32)


def tree(parts):
    """Adds as Herring does: adjacent pairs, level by level."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def gradient(of, step, elements, wild):
    random = np.random.default_rng([of, step, elements])
    values = random.standard_normal(elements) * 2.0 ** random.integers(-6, 6, elements)
    if wild and elements > 40:
        values[40] = np.inf if of == size - 1 else 1.0
    return values.astype(np.float32)


def expect(got, expected, what):
    assert got.dtype == expected.dtype
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (what, int((~same).sum()), got[~same][:5], expected[~same][:5])


def as_answered(numbers, result):
    """Returns float32 numbers as they arrive in the dtype of results."""
    if result in LARGEST:
        return as_sent(numbers, result)
    with np.errstate(over="ignore"):
        return torch.from_numpy(numbers).to(getattr(torch, result)).float().numpy()


def average(sums, result):
    """Returns what servers make of what the nodes send."""
    if len(members) == 1:
        return sums[0] / np.float32(size)
    return as_answered(tree(sums) / np.float32(size), result)


few = sys.argv[1:] == ["few"]
ways = [(True, 0)] if few else itertools.product((True, False), (0, 16384))
for (wire, result), (feedback, buffer_bytes) in itertools.product(WIRES, [*ways]):
    sizes = [1, 31, 5000, 993, 3 if few else 40_003]
    plan = herring.PlannedReduction(
        [(n, "float32") for n in sizes],
        name=f"{wire}-{result}-{feedback}-{buffer_bytes}",
        wire_dtype=wire if wire == result else (wire, result),
        error_feedback=feedback,
        buffer_bytes=buffer_bytes,
    )
    arena = plan.arena(0).view(np.float32)
    assert len(plan.buffers) > 1 or buffer_bytes == 0
    lost = [np.zeros(sum(sizes), np.float32) for _ in members]  # by node
    for step in range(4):
        wild = step == 2
        everyone = [gradient(r, step, sum(sizes), wild) for r in range(size)]
        plan.begin()
        arena[:] = everyone[rank]
        for index in reversed(range(len(sizes))):
            plan.ready(index)
        plan.wait()
        with np.errstate(invalid="ignore"):
            sums = [tree([everyone[r] for r in node]) for node in members]
            expected = np.empty_like(arena)
            for _, offset, nbytes in plan.buffers:  # blocks begin with each buffer
                part = slice(offset // 4, (offset + nbytes) // 4)
                sent = []
                for node, whole in enumerate(sums):
                    wanted = whole[part] + lost[node][part] if feedback else whole[part]
                    if len(members) > 1:
                        arrived = as_sent(wanted, wire)
                        if feedback:
                            lost[node][part] = np.where(np.isnan(arrived), 0, wanted - arrived)
                        wanted = arrived
                    sent.append(wanted)
                expected[part] = average(sent, result)
        expect(arena, expected, (wire, result, feedback, buffer_bytes, step))
        # What rounding has lost, by the ranks that send it.
        mine = plan.residual(0)
        everywhere = herring.allreduce(mine.copy(), op="sum")
        if len(members) == 1 or not feedback:
            assert not everywhere.any()
        elif herring.local_size() == 1:
            expect(mine, lost[members.index([rank])], ("residual", wire, step))
        else:
            np.testing.assert_allclose(everywhere, sum(lost), rtol=1e-6, atol=1e-30)
    before = plan.residual(0)
    plan.set_residual(0, before[::-1])
    after = plan.residual(0)
    assert ((after == before[::-1]) | (before == 0)).all()
    try:
        plan.set_residual(0, before[:-1])
    except herring.InvalidArgumentError as error:
        assert str(sum(sizes)) in str(error)
    else:
        raise AssertionError("a residual of another size was taken")
    plan.close()

# 16-bit gradients travel in 8 bits, too.
for dtype, (wire, result) in itertools.product(("float16", "bfloat16"), WIRES):
    name = f"{wire}/{result}"  # as a text
    plan = herring.PlannedReduction(
        [(3000, dtype), (5, "float32")], wire_dtype=wire if wire == result else name, op="sum"
    )
    kind = getattr(torch, dtype)
    values = [torch.from_numpy(gradient(r, 0, 3000, False)).to(kind) for r in range(size)]
    arena = torch.from_numpy(plan.arena(0)).view(kind)
    plan.begin()
    arena.copy_(values[rank])
    plan.arena(1).view(np.float32)[:] = 1
    plan.ready_all([0, 1])
    plan.wait()
    sums = [tree([values[r].float().numpy() for r in node]) for node in members]
    if len(members) > 1:
        expected = as_answered(tree([as_sent(one, wire) for one in sums]), result)
    else:
        expected = sums[0]
    assert torch.equal(arena, torch.from_numpy(expected).to(kind)), (dtype, wire, result)
    ones = np.full(5, size, np.float32)
    expect(plan.arena(1).view(np.float32), as_answered(ones, result), wire)
    plan.close()

# A rank without gradients keeps what it owes.
plan = herring.PlannedReduction([(2000, "float32")], wire_dtype="int8")
arena = plan.arena(0).view(np.float32)
for step in range(3):
    active = size == 1 or rank > 0 or step != 1
    owed = plan.residual(0)
    plan.begin(active)
    if active:
        arena[:] = gradient(rank, step, 2000, False)
        plan.ready(0)
    plan.wait()
    if not active and herring.local_size() == 1:
        expect(plan.residual(0), owed, "an inactive rank")
    digests = herring.allgather_object(arena.tobytes())
    assert len(set(digests)) == 1
plan.close()

REFUSED = [
    ([(8, "int32")], "average", "int32"),
    ([(8, "float64")], "sum", "float64"),
    ([(8, "float32")], "max", "max"),
    ([(8, "float32"), (3, "float64")], "average", "float64"),
]
for number, (gradients, op, named) in enumerate(REFUSED):
    try:
        herring.PlannedReduction(gradients, op=op, wire_dtype="fp8", name=f"refused-{number}")
    except herring.InvalidArgumentError as error:
        assert named in str(error) and "wire_dtype" in str(error), error
    else:
        raise AssertionError(f"{gradients} with {op} was taken")
for others in ("fp8", "int8", "fp8/bfloat16"):
    if size == 1:
        break
    try:
        herring.PlannedReduction([(8, "float32")], wire_dtype=None if rank else others)
    except herring.MismatchError as error:
        assert others in str(error), error
    else:
        raise AssertionError("ranks disagree about wire_dtype, and no rank was told")
if size > 1:
    try:
        herring.PlannedReduction(
            [(8, "float32")], wire_dtype=("fp8", "float16") if rank else ("fp8", "bfloat16")
        )
    except herring.MismatchError as error:
        assert "fp8/float16" in str(error), error
    else:
        raise AssertionError("ranks disagree about the dtype of results, and no rank was told")
STRANGE = [
    "fp4",
    "fp8/fp4",
    "float16/fp8",
    "fp8/int8",
    "/",
    ("bfloat16", "fp8"),
    ("fp8",),
    ("fp8", 5),
]
for strange in STRANGE:
    try:
        herring.PlannedReduction([(8, "float32")], wire_dtype=strange)
    except herring.InvalidArgumentError as error:
        assert "fp8_e5m2" in str(error) and "bfloat16" in str(error), error
    else:
        raise AssertionError(f"{strange} was taken")
herring.shutdown()
print("packed rounds are right")
