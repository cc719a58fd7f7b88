"""Ranks miss calls in a group, and destroy the group while others use it."""

import numpy as np

import herring
from support import raises

herring.init()
r, n = herring.rank(), herring.size()
pair = herring.new_group([0, 1], name="pair")
if r == 0:
    raises(
        herring.TimeoutError,
        "of group 'pair' (ranks 0-1) waited",
        herring.barrier,
        group=pair,
        timeout=0.3,
    )
    raises(
        herring.TimeoutError,
        "form_group 'never'",
        herring.new_group,
        [0, 2],
        name="never",
        timeout=0.3,
    )
herring.barrier()
if r == 0:
    raises(
        herring.MismatchError,
        "of group 'pair' (ranks 0-1): rank 0: allreduce of float32 [3]",
        herring.allreduce,
        np.ones(3, "f"),
        group=pair,
    )
    raises(
        herring.InvalidArgumentError,
        "was refused by rank 1",
        herring.allreduce,
        np.ones(3, "f"),
        group=pair,
    )
elif r == 1:
    raises(herring.TimeoutError, "waited", herring.barrier, group=pair)
    raises(
        herring.MismatchError,
        "rank 1: allreduce of float32 [4]",
        herring.allreduce,
        np.ones(4, "f"),
        group=pair,
    )
    raises(
        herring.InvalidArgumentError,
        "not supported",
        herring.allreduce,
        np.ones(3, complex),
        group=pair,
    )
else:
    raises(herring.TimeoutError, "waited", herring.new_group, [0, 2], name="never")
herring.barrier()
if r == 0:
    pair.destroy()
herring.barrier()
if r == 1:
    raises(herring.PeerLostError, "has destroyed the group", herring.barrier, group=pair)
herring.barrier()
