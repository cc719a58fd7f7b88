"""All ranks learn the credit, whichever servers rank 0 pushes to.

With two ranks on a node and two servers, rank 0 pushes to the first server alone. The credit begins
with one segment and grows within a few rounds.
"""

import numpy as np

import herring

ELEMENTS = 1 << 20
MOST_ROUNDS = 2000

herring.init()
plan = herring.PlannedReduction([(ELEMENTS, "float32")], name="gradients", op="sum")
first = herring.stats()["credit_bytes"]
rounds = 0
while True:
    plan.begin()
    plan.ready(0)
    plan.wait()
    rounds += 1
    credit = herring.stats()["credit_bytes"]
    least = herring.allreduce(np.array([credit]), "min", name="least")[0]
    if least > 8 * first or rounds == MOST_ROUNDS:
        break
plan.close()
assert least > 8 * first, (herring.rank(), first, credit, rounds)
print(f"rank {herring.rank()} has {credit} bytes after {rounds} rounds", flush=True)
