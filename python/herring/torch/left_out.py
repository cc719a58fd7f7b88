"""Keeps torch.compile out of all that calls the core; imported once, by the package."""

from herring.arrays import (
    agreement,
    calls,
    collectives,
    gradients,
    grouped,
    groups,
    handles,
    joining,
    messages,
    objects,
    operations,
    planned,
    rooted,
    runtime,
)
from herring.partial import allreduce, lists, named, reduction, replay, statistics
from herring.torch import (
    buckets,
    buffers,
    diloco,
    fragments,
    functional,
    functions,
    join,
    kept,
    local_sgd,
    partial,
    residuals,
    round_buffer,
    saved_meetings,
    sparse,
    state,
)
from herring.torch.compiled import leave_out

leave_out(agreement, calls, collectives, gradients, grouped, groups, handles, joining, messages)
leave_out(objects, operations, planned, rooted, runtime)
leave_out(allreduce, lists, named, reduction, replay, statistics)
leave_out(buckets, buffers, diloco, fragments, functional, functions, join, kept, local_sgd)
leave_out(partial, residuals, round_buffer, saved_meetings, sparse, state)
