"""Leaves something open in each turn, shuts down, and begins anew: all ranks meet every time.

Ranks differ in what they leave open, as after calls that diverge. Arguments: turns, seed.
"""

import contextlib
import random
import sys
import threading

import numpy as np

import herring
from herring.planned import PlannedReduction

turns, seed = int(sys.argv[1]), int(sys.argv[2])
herring.init()
rank, size = herring.rank(), herring.size()
ours = random.Random(seed)  # the same on all ranks
mine = random.Random(seed * 1000 + rank)
kept = []


def ones():
    return np.ones(mine.choice([1, 100_000]), np.float32)


def in_thread(call):
    def run():
        with contextlib.suppress(herring.HerringError):
            call()

    kept.append(threading.Thread(target=run, daemon=True))
    kept[-1].start()


def a_call_that_others_do_not_make():
    kept.append(herring.allreduce_async(ones(), name=f"of rank {rank}"))


def a_call_that_times_out():
    herring.allreduce(ones(), name=f"late {rank}", timeout=0.2)


def calls_that_disagree():
    herring.allreduce(np.ones(2 + rank % 2, np.float32), name="disagree", timeout=0.2)


def a_thread_that_waits():
    in_thread(lambda: herring.allreduce(ones(), name=f"thread of rank {rank}"))


def a_message_that_nobody_takes():
    kept.append(herring.send_async(ones(), (rank + 1) % size, 7))


def a_message_that_does_not_come():
    kept.append(herring.receive_async(np.zeros(3, np.float32), (rank + 1) % size, 8))


def a_group_that_others_do_not_form():
    if rank in (0, size - 1):
        in_thread(lambda: herring.new_group([0, size - 1]))


def a_round():
    plan = PlannedReduction([(100_000, "float32"), (10, "float32")], name="plan")
    kept.append(plan)
    if mine.random() < 0.7:
        plan.begin()
        plan.ready(mine.choice([0, 1]))


def an_end_by_force():
    if mine.random() < 0.5:
        herring.abort("this rank gives up")


APART = [
    a_call_that_others_do_not_make,
    a_call_that_times_out,
    calls_that_disagree,
    a_thread_that_waits,
    a_message_that_nobody_takes,
    a_message_that_does_not_come,
    a_group_that_others_do_not_form,
    an_end_by_force,
]

met = 0
for turn in range(turns):
    sums = np.full(3, turn, np.float32)
    try:
        herring.allreduce(sums, "sum", name="whole")
        assert (sums == turn * size).all(), (turn, sums)
        met += 1
    except herring.PeerLostError as error:
        assert "gives up" in str(error), error  # another rank has its result, and ends the job
    with contextlib.suppress(herring.HerringError):  # of a job that another rank ends meanwhile
        if ours.random() < 0.3:
            a_round()
        for leave_open in mine.sample(APART, mine.choice([0, 1, 2])):
            leave_open()
    herring.shutdown()
    if len(kept) > 20:
        kept.clear()
    herring.init()
assert met > turns / 2, met
herring.shutdown()
