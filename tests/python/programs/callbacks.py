"""Checks that callbacks are called once, in order, and may start other operations."""

import gc
import os
import threading

import numpy as np

import herring
from callbacks_start import start

herring.init()
rank, size = herring.rank(), herring.size()

main = threading.current_thread()
# Callbacks run in order, once each, with the handle, on another thread.
seen, all_there = [], threading.Event()
handle = start("order", 200_000)
for i in range(20):
    handle.add_done_callback(lambda h, i=i: seen.append((i, h, threading.current_thread())))
handle.add_done_callback(lambda h: all_there.set())
assert all_there.wait(600)
assert [i for i, _, _ in seen] == list(range(20)), seen
assert all(h is handle for _, h, _ in seen)
assert (handle.wait() == size).all() and handle.exception() is None

# A callback of a complete operation runs at once, on the calling thread.
seen.clear()
handle.add_done_callback(lambda h: seen.append((h.wait()[0], threading.current_thread())))
assert seen == [(size, main)], seen

# The other ranks call later, so the operation is in flight while callbacks are added. The first
# handle is waited for, the second is not.
for waits in (True, False) if size > 1 else ():
    seen.clear()
    there = threading.Event()
    if rank == 0:
        handle = start(f"late {waits}")
        handle.add_done_callback(lambda h: seen.append(threading.current_thread().name))
        handle.add_done_callback(lambda h, there=there: there.set())
        assert not seen and not handle.done()
        herring.barrier()
        if waits:
            handle.wait(600)
        assert there.wait(600) and seen == ["herring-callbacks"], seen
    else:
        herring.barrier()
        start(f"late {waits}").wait(600)

# The caller drops the handle and the array at once.
got, there = [], threading.Event()


def keep(h):
    got.append(h.wait().sum())
    there.set()


start("dropped", 100_000).add_done_callback(keep)
gc.collect()
assert there.wait(600) and got == [100_000 * size], got

# A callback starts the next operation, and waits for other operations.
links, ended = [], threading.Event()


def link(h):
    links.append(float(h.wait()[0]))
    herring.allreduce(np.ones(3), "sum", name=f"inner {len(links)}")
    if len(links) == 100:
        ended.set()
    else:
        start(f"chain {len(links)}").add_done_callback(link)


start("chain 0").add_done_callback(link)
assert ended.wait(600) and links == [size] * 100, links

# Many threads start operations of their own.
total, lock, ended = [0], threading.Lock(), threading.Event()


def count(h):
    h.wait()
    with lock:
        total[0] += 1
        if total[0] == 8 * 50 * 2:
            ended.set()


def many(thread):
    for i in range(50):
        h = start(f"many {thread} {i}", 100 if i % 5 else 20_000)
        h.add_done_callback(count)
        if i % 3 == 0:
            h.wait(600)
        h.add_done_callback(count)


threads = [threading.Thread(target=many, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(600)
assert ended.wait(600), total
names = [thread.name for thread in threading.enumerate()]
assert names.count("herring-callbacks") == 1, names
herring.barrier()
herring.shutdown()
names = [thread.name for thread in threading.enumerate()]
assert "herring-callbacks" not in names, names
# The next job has a callback thread of its own.
if "-" not in os.environ.get("TEST_LAYOUT", ""):
    herring.init()
    there = threading.Event()
    start("again", 100_000).add_done_callback(lambda h: there.set())
    assert there.wait(600)
