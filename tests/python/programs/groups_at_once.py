"""Uses overlapping groups at the same time, each in a separate thread."""

import threading

import numpy as np

import herring

herring.init()
r, n = herring.rank(), herring.size()
lists = [range(n), range(1, n), [x for x in range(n) if x != 1], [0, n - 1], range(n)]
groups = [g for g in (herring.new_group(ranks) for ranks in lists) if g.rank is not None]
failures = []


# One thread per group, and one for the world; each rank starts them in a different order.
def work(group, number):
    try:
        ranks = range(n) if group is None else group.ranks
        for step in range(25):
            count = (10, 50_000, 700_001)[step % 3]
            array = np.full(count, r + step, np.float32)
            algorithm = ("herring", "herring", "ring")[(step // 3) % 3]
            herring.allreduce(
                array, "sum", name=f"{number}.{step}", group=group, algorithm=algorithm
            )
            assert (array == sum(x + step for x in ranks)).all(), (number, step)
    except BaseException as error:
        failures.append(error)
        raise


threads = [threading.Thread(target=work, args=(g, g.name + str(g.ranks))) for g in groups]
threads.append(threading.Thread(target=work, args=(None, "world")))
np.random.default_rng(r).shuffle(threads)
[t.start() for t in threads]
[t.join() for t in threads]
assert not failures
herring.barrier()
