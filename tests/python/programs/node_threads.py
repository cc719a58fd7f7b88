"""Prints a digest of sums computed by several threads of a node."""

import hashlib
import os

import numpy as np

import herring
from node_helpers import helpers
from reductions import check_reductions
from support import until

herring.init()
rank, size = herring.rank(), herring.size()
herring.allreduce(np.ones(20_000, np.float32))
assert helpers() == 0, "of an array of 80 kB"
digest = hashlib.sha256()
for step, dtype in enumerate((np.float32, np.float64, np.float16)):
    for count in (1_500_007, 400_001):
        random = np.random.default_rng([rank, step, count])
        array = random.standard_normal(count).astype(dtype)
        herring.allreduce(array, "average")
        digest.update(array)
gradients = [(700_001, "float32"), (1_300_000, "float32"), (3, "float32")]
for wire in (None, "float16"):
    plan = herring.PlannedReduction(gradients, name=f"p{wire}", wire_dtype=wire)
    arena = plan.arena(0).view(np.float32)
    for step in range(3):
        plan.begin()
        arena[:] = np.random.default_rng([rank, step]).standard_normal(arena.size)
        plan.ready_all([0, 1, 2])
        plan.wait()
        digest.update(arena)
for found in (
    herring.allgather(np.arange(2_000_000.0) + rank),
    herring.alltoall(np.arange(size * 400_000.0) + rank),
):
    herring.broadcast(found, 0)
    digest.update(found)
parts = herring.reduce_scatter(np.arange(900_000.0) + rank, "sum")
herring.allreduce(parts[:1000], "sum")
digest.update(parts[:1000])
threads = int(os.environ["HERRING_NODE_THREADS"])
if herring.local_size() > 1:
    until(lambda: helpers() == threads - 1)  # A thread has its name a little after it has begun.
if threads > 1:
    check_reductions((1_200_007,))
print("digest", digest.hexdigest())
herring.shutdown()
until(lambda: helpers() == 0)  # The system may list a thread a little longer.
