"""Runs series whose ranks make different numbers of steps, in every mode."""

import herring
from flush_series import run
from herring.partial import Quorum

herring.init()

modes = [
    "solo",
    "majority",
    Quorum(3),
    Quorum(4),
    Quorum(1, grace=0.001, staleness=0),
    Quorum(2, staleness=1),
    Quorum(2, grace=0.002, divisor="contributors"),
]
ahead = 0
for seed in range(28):
    sync = modes[seed % len(modes)]
    elements = [1, 512, 50_000][seed % 3]
    op = "average" if seed % 4 == 0 and not isinstance(sync, Quorum) else "sum"
    _, seen = run(seed, elements, sync, op)
    uptos = dict(pair for _, _, uptos in seen for pair in uptos)
    counted = {}
    for number, _, these in seen:
        counted.update({r: number for r, upto in these if upto == uptos[r]})
    ahead += sum(number < len(seen) - 1 for number in counted.values())
assert ahead > 10, f"only {ahead} ranks flushed before others contributed anew"
