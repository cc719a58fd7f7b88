"""Handle.add_done_callback: once, in order, on a thread that may start other operations."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, run_job

pytestmark = pytest.mark.timeout(120)

COMMON = """
import gc, threading
import numpy as np
herring.init()
rank, size = herring.rank(), herring.size()

def start(name, count=5, op="sum"):
    return herring.allreduce_async(np.ones(count, np.float32), op, name=name)
"""

CALLED = """
main = threading.current_thread()
# In order, once each, with the handle, elsewhere than here.
seen, all_there = [], threading.Event()
handle = start("order", 200_000)
for i in range(20):
    handle.add_done_callback(lambda h, i=i: seen.append((i, h, threading.current_thread())))
handle.add_done_callback(lambda h: all_there.set())
assert all_there.wait(30)
assert [i for i, _, _ in seen] == list(range(20)), seen
assert all(h is handle for _, h, _ in seen)
assert (handle.wait() == size).all() and handle.exception() is None

# Complete already: at once, here.
seen.clear()
handle.add_done_callback(lambda h: seen.append((h.wait()[0], threading.current_thread())))
assert seen == [(size, main)], seen

# In flight for certain while they are added, waited for and not: the others come later.
for waits in (True, False) if size > 1 else ():
    seen.clear()
    there = threading.Event()
    if rank == 0:
        handle = start(f"late {waits}")
        handle.add_done_callback(lambda h: seen.append(threading.current_thread().name))
        handle.add_done_callback(lambda h: there.set())
        assert not seen and not handle.done()
        herring.barrier()
        if waits:
            handle.wait(30)
        assert there.wait(30) and seen == ["herring-callbacks"], seen
    else:
        herring.barrier()
        start(f"late {waits}").wait(30)

# The handle and the array are dropped at once.
got, there = [], threading.Event()
def keep(h):
    got.append(h.wait().sum())
    there.set()
start("dropped", 100_000).add_done_callback(keep)
gc.collect()
assert there.wait(30) and got == [100_000 * size], got

# A callback starts the next, and waits for others.
links, ended = [], threading.Event()
def link(h):
    links.append(float(h.wait()[0]))
    herring.allreduce(np.ones(3), "sum", name=f"inner {len(links)}")
    if len(links) == 100:
        ended.set()
    else:
        start(f"chain {len(links)}").add_done_callback(link)
start("chain 0").add_done_callback(link)
assert ended.wait(60) and links == [size] * 100, links

# Many threads, each with operations of its own.
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
            h.wait(30)
        h.add_done_callback(count)
threads = [threading.Thread(target=many, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert ended.wait(60), total
names = [thread.name for thread in threading.enumerate()]
assert names.count("herring-callbacks") == 1, names
herring.barrier()
herring.shutdown()
names = [thread.name for thread in threading.enumerate()]
assert "herring-callbacks" not in names, names
# The next job has a thread of its own.
if "-" not in os.environ.get("TEST_LAYOUT", ""):
    herring.init()
    there = threading.Event()
    start("again", 100_000).add_done_callback(lambda h: there.set())
    assert there.wait(30)
"""

FAILING = """
# It fails on all ranks: the error is there in the callback, and later.
errors, there = [], threading.Event()
handle = start("differs", 5 + rank)
handle.add_done_callback(lambda h: errors.append(h.exception()))
handle.add_done_callback(lambda h: there.set())
assert there.wait(30)
assert isinstance(errors[0], herring.MismatchError), errors
raises(herring.MismatchError, "differs", handle.wait)
# What a callback raises is logged; those behind it are called, in this handle and in others.
there = threading.Event()
def bad(h):
    raise ValueError(f"bad callback of rank {rank}")
def worse(h):
    raise SystemExit(f"asked to end by rank {rank}")
handle = start("raises", 100_000)
handle.add_done_callback(bad)
handle.add_done_callback(lambda h: there.set())
assert there.wait(30)
handle.wait()
there = threading.Event()
if rank == 0:
    handle = start("after")
    handle.add_done_callback(worse)
    handle.add_done_callback(bad)
    herring.barrier()
else:
    herring.barrier()
    handle = start("after")
handle.add_done_callback(lambda h: there.set())
assert there.wait(30)
handle.wait()
handle.add_done_callback(bad)  # here, and logged as well
# A time to wait here is over, the operation goes on.
if rank == 0:
    handle = start("slow")
    raises(herring.TimeoutError, "goes on", handle.exception, 0.05)
    herring.barrier()
else:
    herring.barrier()
    handle = start("slow")
assert handle.exception() is None
# What was forked off has no part in it.
herring.barrier()
if rank == 0:
    handle = start("forked")
    done = start("done")
    done.wait()
    child = os.fork()
    if child == 0:
        seen = []
        done.add_done_callback(seen.append)
        try:
            handle.add_done_callback(seen.append)
        except herring.ShutdownError as error:
            assert "fork" in str(error), str(error)
            os._exit(7 if seen == [done] else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    herring.barrier()
else:
    start("done").wait()
    herring.barrier()
    handle = start("forked")
handle.wait()
herring.barrier()
"""

ENDING = """
# Shutdown ends what is in flight: its callbacks are called before it returns.
herring.barrier()  # nobody is still connecting when the first one leaves
seen = []
if rank == 0:
    for i in range(30):
        def ended(h, i=i):
            time.sleep(0.01)
            seen.append((i, type(h.exception()).__name__))
            raises(herring.ShutdownError, "init", herring.barrier)
        start(f"never {i}").add_done_callback(ended)
else:
    time.sleep(0.3)
if rank == 0:
    herring.shutdown()
    assert sorted(seen) == [(i, "ShutdownError") for i in range(30)], seen
# A callback may end the job itself.
"""

ITSELF = """
there = threading.Event()
def end(h):
    herring.shutdown()
    there.set()
handle = start("last", 100_000)
herring.barrier()
handle.add_done_callback(end)
assert there.wait(30) and not herring.is_initialized()
"""

STUCK = """
# A callback that does not end is not waited for for ever.
def sleep(h):
    time.sleep(60)
if rank == 0:
    h = start("stuck")
    h.add_done_callback(sleep)
herring.barrier()
if rank == 1:
    h = start("stuck")
h.wait()
begin = time.monotonic()
herring.shutdown()
spent = time.monotonic() - begin
assert spent < 20 and (rank == 1 or spent > 5), spent
"""


@pytest.mark.parametrize("layout", ["alone", "one-node", "colocated-servers", "dedicated-servers"])
def test_callbacks_are_called(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], COMMON + CALLED, timeout=100, TEST_LAYOUT=layout))


def test_what_callbacks_see_and_raise() -> None:
    layout = ["-n", "4", "--nodes", "2"]
    output = expect_success(run_job(layout, COMMON + FAILING))
    for rank in range(4):
        assert f"ValueError: bad callback of rank {rank}" in output, output
    assert "SystemExit: asked to end by rank 0" in output, output


def test_shutdown_calls_what_is_pending() -> None:
    expect_success(run_job(["-n", "2", "--nodes", "2", "--servers", "1"], COMMON + ENDING))


def test_a_callback_may_shut_down() -> None:
    expect_success(run_job(["-n", "3"], COMMON + ITSELF))


def test_shutdown_does_not_wait_for_ever() -> None:
    output = expect_success(run_job(["-n", "2", "--servers", "1"], COMMON + STUCK))
    assert "a callback of a handle still runs" in output, output
