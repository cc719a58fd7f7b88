"""Ranks miss calls in a group, and destroy the group while others use it."""

import numpy as np

import herring
from support import raises

herring.init()
r, n = herring.rank(), herring.size()
pair = herring.new_group([0, 1], name="pair")
late = herring.TimeoutError


def allreduce(array: np.ndarray, kind: type[Exception], text: str) -> None:
    raises(kind, text, herring.allreduce, array, group=pair)


# Rank 0 waits for ranks that come too late; all of them get the error.
if r == 0:
    text = "of group 'pair' (ranks 0-1) waited"
    raises(late, text, herring.barrier, group=pair, timeout=0.3)
    raises(late, "form_group 'never'", herring.new_group, [0, 2], name="never", timeout=0.3)
herring.barrier()
if r == 1:
    raises(late, "waited", herring.barrier, group=pair)
elif r > 1:
    raises(late, "waited", herring.new_group, [0, 2], name="never")

# The members disagree, and one of them refuses a call.
if r < 2:
    described = (
        "of group 'pair' (ranks 0-1): rank 0: allreduce of float32 [3]",
        "rank 1: allreduce of float32 [4]",
    )
    refusal = ("was refused by rank 1", "not supported")
    allreduce(np.ones(3 + r, "f"), herring.MismatchError, described[r])
    allreduce(np.ones(3, complex if r else "f"), herring.InvalidArgumentError, refusal[r])
herring.barrier()
if r == 0:
    pair.destroy()
herring.barrier()
if r == 1:
    raises(herring.PeerLostError, "has destroyed the group", herring.barrier, group=pair)
herring.barrier()
