"""Calls every collective from programs on GPUs, which go on without waiting for the host."""

import os

import numpy as np

import herring
from gate import Gate
from herring import _core
from xla_job import Program, array, driver, rank, size

big, small = (array(np.zeros(n, np.float32)) for n in (300_000, 7))
small.stream = big.stream
program = Program(big)
assert program.version() == (0, 1)
place, other, gathered, part = (
    array(np.full(n, 5, np.float32)) for n in (300_000, 7, 7 * size, 4 if rank < 7 % size else 3)
)
rows = [7 // size + (r < 7 % size) for r in range(size)]
part = array(np.zeros(rows[rank], np.float32))
for one in (place, other, gathered, part):
    one.stream = big.stream
waits = driver.calls(b"cuStreamSynchronize")


def call(key, arrays, places, **attributes):
    assert program.start(key, arrays, places, **attributes) is None
    for one in arrays:
        if all(one is not place for place in places):
            one.fill(-1)  # From here on the program may overwrite it.
    assert program.finish(key, places) is None


for step in range(5):
    everybody = sum(r + step for r in range(size))
    # Two executions may be under way, unless memory cannot be pinned. Kernels that wait are loaded
    # in the first step, when the GPU is idle. Where the host must not wait, no kernel ends before
    # the host has come through.
    loads = step == 0 and os.environ.get("STANDIN_STREAM_MEMORY") == "0"
    gate = Gate()
    if step < 2 and not loads and "STANDIN_FAIL" not in os.environ:
        gate.hold(big)
    big.fill(rank + step)
    small.fill(rank, 1000)
    call("apart", [big, small], [place, other])
    place.scale(2)
    big.fill(rank + step)
    call("in place", [big, small], [big, small])
    small.fill(rank + step)
    call("scaled", [small], [small], op="average", prescale=2.0)
    gate.open()
    assert (place.get() == 2 * everybody).all(), (step, place.get()[:3], everybody)
    assert (big.get() == everybody).all(), (step, big.get()[:3])
    assert np.allclose(small.get(), 2 * everybody / size), (step, small.get()[:3])
    small.fill(rank + step)
    call("gather", [small], [gathered], kind="allgather")
    assert (gathered.get() == np.repeat([r + step for r in range(size)], 7)).all(), gathered.get()
    small.store(np.arange(7) + rank)
    call("scatter", [small], [part], kind="reduce_scatter")
    first = sum(rows[:rank])
    wanted = (np.arange(7) * size + sum(range(size)))[first : first + rows[rank]]
    assert (part.get() == wanted).all(), (part.get(), wanted)
    for root in range(size):
        small.fill(rank)
        call("from", [small], [small], kind="broadcast", root=root)
        assert (small.get() == root).all()
assert driver.calls(b"cuStreamSynchronize") == waits
assert driver.threads() == 1
_core.jax.settle(5.0)
_core.jax.check()
herring.shutdown()
