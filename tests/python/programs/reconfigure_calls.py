"""Changes the members of a process group again and again, and calls it wrongly in between."""

import socket

import torch
from torch._C import _distributed_c10d as c10d

import herring
from reconfigure_support import (
    HAS_FRONT,
    RANK,
    begin,
    dist,
    done,
    exchange,
    meet,
    reconfigure,
    require_sum,
)
from support import raises

ALL = [0, 1, 2]
group = begin()
raises(herring.ShutdownError, "has no members yet", group.allreduce, [torch.ones(2)])
raises(herring.ShutdownError, "has no members yet", group.send, [torch.ones(2)], 0)
raises(herring.ShutdownError, "has no members yet", group.barrier)

# A handle names a port at which nobody listens.
address, _, port = group.get_reconfigure_handle().rpartition("/")[2].rpartition(":")
for host in ("127.0.0.1", address.strip("[]")):
    raises(ConnectionRefusedError, "", socket.create_connection, (host, int(port)), 10)

# One process, and all of them, in several orders.
reconfigure(group, 10 + RANK, [group.get_reconfigure_handle()])
require_sum(group, [RANK])
for turn, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 0, 2])):
    handles = exchange(group, f"order {turn}", order)
    assert group.get_reconfigure_handle() in handles  # it stays the same until it is used
    reconfigure(group, 20 + turn, handles)
    require_sum(group, order)
used = next(handle for place, handle in zip(order, handles) if place == RANK)
handles = exchange(group, "set", ALL)
reconfigure(group, 30, set(handles))
require_sum(group, [handles.index(handle) for handle in sorted(handles)])
reconfigure(group, 31, exchange(group, "list", ALL))

# torch's C++ reaches these methods too.
if HAS_FRONT:
    base = dist.ProcessGroup
    assert base.supports_reconfigure.fget(group)
    assert base.get_reconfigure_handle(group) == group.get_reconfigure_handle()
    call = c10d.ReconfigureOptions()
    call.uuid, call.handles = 35, exchange(group, "C++", [2, 1, 0])
    base.reconfigure(group, call).wait()
    assert (base.rank(group), base.size(group)) == (2 - RANK, 3)
    require_sum(group, [2, 1, 0])
    reconfigure(group, 36, exchange(group, "list again", ALL))

# Wrong calls do nothing.
handles = exchange(group, "wrong", ALL)
mine = group.get_reconfigure_handle()
others = [handle for handle in handles if handle != mine]
for text, uuid, given in (
    ("is not a handle", 40, [*others, "nonsense"]),
    ("is not a handle", 40, [*others, mine.replace("herring1", "herring9")]),
    ("given twice", 40, [mine, mine, *others]),
    ("none of the 2 handles is this process's", 40, others),
    ("none of the 0 handles", 40, []),
    ("good for one call", 40, [used, *others]),
    ("already used", 20, handles),
):
    raises(herring.InvalidArgumentError, text, reconfigure, group, uuid, given)
assert issubclass(herring.InvalidArgumentError, RuntimeError)  # as torch's own backends raise
require_sum(group, ALL)

# What is under way fails, whoever waits for it and whenever.
parts = [torch.zeros(50_000) for _ in ALL]
options = c10d.AllgatherOptions()
options.asyncOp = False  # nobody takes the result before wait() is called
untaken = group.allgather([parts], [torch.ones(50_000)], options)
group.barrier().wait()
if RANK == 0:
    waiting = group.allreduce([torch.ones(3)])
    promised = group.allreduce([torch.ones(3)]).get_future()
    message = group.recv([torch.ones(3)], 1)
    own_message = group.send([torch.ones(3)], 0)
reconfigure(group, 50, exchange(group, "under way", ALL))
raises(herring.ShutdownError, "was reconfigured before", untaken.wait)
assert all(bool((part == 0).all()) for part in parts)
if RANK == 0:
    raises(herring.ShutdownError, "was reconfigured before", own_message.wait)
    for work in (waiting, message):  # another rank may have left first
        raises((herring.ShutdownError, herring.PeerLostError), "", work.wait)
        assert work.is_completed() and not work.is_success()
    raises(RuntimeError, "", promised.wait)
require_sum(group, ALL)

# Groups made before belong to the job that has ended; they can be made again.
if HAS_FRONT:
    half, everybody = dist.new_group([0, 1]), dist.new_group(ALL)
    dist.all_reduce(torch.ones(3), group=everybody)
    reconfigure(group, 60, exchange(group, "groups", [1, 2, 0]))
    for made in [everybody, *([half] if RANK < 2 else [])]:
        raises(herring.ShutdownError, "has ended", made.allreduce, [torch.ones(3)])
        # torch may find that the new rank is not in the old group, before or after it calls.
        raises((herring.ShutdownError, ValueError), "", dist.barrier, group=made)
        raises(herring.ShutdownError, "has ended", made.send, [torch.ones(3)], 0)
        raises(herring.ConfigurationError, "cannot change", made.get_reconfigure_handle)
        raises(herring.ConfigurationError, "cannot change", reconfigure, made, 61, [])
        assert not made.supports_reconfigure
        dist.destroy_process_group(made)
    again = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=again)
        assert tensor.tolist() == [2.0] * 3
    require_sum(group, [1, 2, 0])

# Processes that disagree about the call, and one that does not come: errors, and then a job again.
handles = exchange(group, "disagree", ALL)
kind = herring.TimeoutError if RANK == 0 else herring.AuthenticationError
limit = 10.0 if RANK == 0 else 600.0  # rank 0 waits in vain; it refuses the others at once
raises(kind, "exchange handles again", reconfigure, group, 70 + (RANK > 0), handles, limit)
raises(herring.ShutdownError, "has failed", group.allreduce, [torch.ones(2)])
reconfigure(group, 72, exchange(group, "agree", ALL))
require_sum(group, ALL)
for missing in (2, 0):
    handles = exchange(group, f"{missing} is missing", ALL)
    if missing != RANK:
        raises(herring.TimeoutError, "may be dead", reconfigure, group, 80 + missing, handles, 1.0)
        raises(herring.ShutdownError, "has failed", group.barrier)
    meet(f"{missing} was missing", ALL)
    rest = [place for place in ALL if place != missing]
    if missing != RANK:
        reconfigure(group, 90 + missing, exchange(group, f"without {missing}", rest))
        require_sum(group, rest)
        assert group.get_reconfigure_handle() not in handles
    reconfigure(group, 100 + missing, exchange(group, f"with {missing}", ALL))
    require_sum(group, ALL)

# An abort ends the job for all, and the next call begins one.
meet("nobody is inside a call", ALL)
if RANK == 1:
    group.abort()
    raises(herring.HerringError, "was aborted", group.allreduce, [torch.ones(2)])
else:
    raises(herring.PeerLostError, "", lambda: group.allreduce([torch.ones(2)]).wait())
reconfigure(group, 110, exchange(group, "aborted", ALL))
require_sum(group, ALL)
meet("end", ALL)
if HAS_FRONT:
    dist.destroy_process_group()
    raises(herring.ShutdownError, "", herring.barrier)
done()
