"""The all-reduce of arrays: of all ranks, or a partial one."""

from __future__ import annotations

from typing import Any

from herring.arrays.collectives import Handle, note_write, submit
from herring.arrays.groups import Group
from herring.arrays.partial import Quorum, Replay, allreduce_in_rounds
from herring.errors import InvalidArgumentError

__all__ = ["allreduce"]


def allreduce(
    array: Any,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    algorithm: str = "herring",
    sync: str | Quorum | Replay | None = None,
    group: Group | None = None,
) -> Any:
    """Reduces `array` over all ranks, element by element and in place.

    Sums are taken in float32 for 16-bit floats, else in the array's own dtype, in one fixed tree:
    the same inputs give the same bits.

    Args:
      array: any shape; float32, float64, float16, bfloat16 (DLPack), int8, int16, int32, int64,
        uint8 or bool. Equal shape and dtype on all ranks.
      op: "average" (floats only), "sum", "min", "max" or "product".
      name: identifies the operation across ranks.
      prescale: multiplies every rank's values first (floats only).
      postscale: multiplies the result (floats only).
      timeout: seconds until the operation fails because ranks do not call it, and until the job
        fails because, after all have, nothing moves (at least 2 s); None: ``HERRING_TIMEOUT``.
      algorithm: "herring" goes through the servers. "server" (rank 0 is the only one), "tree"
        (binomial), "ring" and "butterfly" (recursive halving and doubling) go by messages between
        the workers, over TCP also inside a node; see docs/algorithms.md for when to use which. They
        give the same bits on all ranks and every time, but each algorithm and number of ranks its
        own; 16-bit floats are rounded to their own dtype after each addition, and may overflow
        there. Equal on all ranks. "cuda-butterfly" is "butterfly", with the same bits, but where
        an array lies on a GPU kernels take its sums; see docs/gpus.md.
      sync: "solo", "majority", a `herring.Quorum` or a `herring.Replay`: a partial all-reduce,
        which does not wait for everybody ("average" and "sum" only). All calls of one `name`
        ("allreduce" if none is given) are a series: the n-th call returns the result of round n,
        which is the same on all ranks; what comes too late for its round is in the next one.
        `herring.flush` ends the series. The first call waits for all ranks. "full": an ordinary
        all-reduce, once ranks have agreed that it is. See docs/partial.md.
      group: a `herring.Group`: those who take part; None: all ranks.

    Returns:
      `array`.

    Raises:
      InvalidArgumentError: dtype, op or algorithm not supported, not contiguous, read-only, not in
        host memory, or an operation of this name is in flight.
      MismatchError: ranks disagree; the message lists which rank had what.
      PeerLostError: a worker or server died or left.
      TimeoutError: the deadline passed; the message names the missing ranks.
    """
    if sync is not None:
        if (prescale, postscale, algorithm) != (1.0, 1.0, "herring") and sync != "full":
            raise InvalidArgumentError(
                f"allreduce(sync={sync!r}) takes no prescale, postscale or algorithm"
            )
        if allreduce_in_rounds(array, op, sync, name, timeout, group):
            note_write(array)
            return array
    operation = submit(
        "allreduce",
        array,
        name,
        timeout,
        group,
        op=op,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
    )
    return Handle(operation, array).wait()
