"""Runs rounds and named calls for a timeline: `STEPS` steps, of which each computes `COMPUTE` s.

With a NUMBER, 0 or 1, the job stays until that of the other number has made its steps, too.
"""

import os
import time

import numpy as np

import herring
from support import tell, told

herring.init()
rank, size = herring.rank(), herring.size()
steps = int(os.environ.get("STEPS", "20"))
compute = float(os.environ.get("COMPUTE", "0.005"))
gradients = [(50_000, "float32")] * 6
model = herring.PlannedReduction(gradients, name="model", buffer_bytes=600_000)
model.arena(0).view("float32")[:] = 1
half = herring.new_group(range(size // 2)) if size > 1 else None
own = None
if half is not None and rank < size // 2:
    own = herring.PlannedReduction([(1000, "float32")], name="half", group=half)
for step in range(steps):
    model.begin()
    for i in range(len(gradients)):
        time.sleep(compute / len(gradients))
        model.ready(i)
    model.wait()
    if own is not None and step % 4 == 0:
        own.begin()
        own.ready(0)
        own.wait()
    if step % 5 == 0:
        herring.allreduce(np.ones(100_000, np.float32), name="layer.weight")
        herring.allreduce(np.ones(3), name="loss")
if number := os.environ.get("NUMBER"):
    tell(f"steps of {number}")
    told("steps of 0", "steps of 1")
herring.shutdown()
