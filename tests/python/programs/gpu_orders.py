"""Makes calls in unusual orders: of plans, threads, groups and jobs."""

import threading

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

# Ranks use two plans in different orders, and make a collective between their gradients.
gpu = rank % gpus
plans, arenas = [], []
for number in range(2):
    plan = herring.PlannedReduction(
        [(200_000, "float32")] * 3, name=f"p{number}", op="sum", device=gpu, buffer_bytes=1 << 20
    )
    arenas.append(GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32), gpu))
    plan.place([arenas[-1]])
    plans.append(plan)
norm = GpuArray(np.ones(1000, np.float32), gpu)
order = (0, 1) if rank % 2 else (1, 0)
for step in range(5):
    for number in order:
        plans[number].begin()
        arenas[number].fill(rank + step + number)
    for place, number in enumerate(order):
        plans[number].ready_all([0, 1])
        norm.fill(1)
        herring.allreduce(norm, "sum", name=f"norm{place}")
        # What is queued for the arena from now on runs after that result.
        driver.order(norm.stream, arenas[1 - number].stream)
        plans[number].ready(2)
    for number in reversed(order):
        plans[number].wait()
        found = arenas[number].get()[:600_000]
        assert (found == sum(r + step + number for r in range(size))).all(), (step, number)


# Each thread uses names of its own, and waits a second time in another stream.
def calls(thread):
    array = GpuArray(np.zeros(20_000, np.float32), gpu, tells=thread % 2)
    for step in range(10):
        array.fill(rank + step + thread)
        handle = herring.allreduce_async(array, "sum", name=f"t{thread}.{step}")
        if thread % 3 == 0:
            handle.add_done_callback(lambda done: done.wait())
        handle.wait()
        array.stream = driver.stream(gpu)
        handle.wait()
        wanted = sum(r + step + thread for r in range(size))
        assert (array.get() == wanted).all(), (thread, step, array.get()[:3], wanted)
    done.append(thread)


done = []
threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
assert sorted(done) == [0, 1, 2, 3]

# A group works, ranks run out of data, nobody waits for a handle, and another job follows.
half = herring.new_group(range(0, size, 2))
if rank % 2 == 0:
    array = GpuArray(np.full(5000, rank, np.float32), gpu)
    herring.allreduce(array, "sum", group=half)
    assert (array.get() == sum(range(0, size, 2))).all()
array = GpuArray(np.full(5000, 1, np.float32), gpu)
for _ in range(rank + 1):
    array.fill(1)
    herring.allreduce(array, "sum", name="uneven")
herring.join()
herring.allreduce_async(array, "sum", name="dropped")
herring.barrier()
for plan in plans:
    plan.close()
herring.shutdown()
herring.init()
array.fill(1)
herring.allreduce(array, "sum")
assert (array.get() == size).all()
herring.shutdown()
