"""The all-reduce of one array: at once or by a handle, over all ranks or partial."""

from __future__ import annotations

from typing import Any

from herring.arrays.arguments import Array, Operator, Timeout
from herring.arrays.calls import CallOptions
from herring.arrays.groups import Group
from herring.arrays.operations import Handle, note_write, submit
from herring.errors import InvalidArgumentError
from herring.partial.named import allreduce_in_rounds
from herring.partial.quorum import Quorum
from herring.partial.replay import Replay

__all__ = ["allreduce", "allreduce_async"]


def allreduce(
    array: Array,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    algorithm: str = "herring",
    sync: str | Quorum | Replay | None = None,
    group: Group | None = None,
) -> Array:
    """Reduces `array` over all ranks, element by element and in place.

    Sums of 16-bit floats are taken in float32, other sums in the array's own dtype. The additions
    form one fixed tree, so the same inputs give the same bits.

    Args:
      array: An array of any shape; equal shape and dtype on all ranks. The dtype is float32,
        float64, float16, bfloat16 (by DLPack), int8, int16, int32, int64, uint8 or bool.
      timeout: Seconds until the operation fails because a rank does not make the call; None means
        ``HERRING_TIMEOUT``. The job fails if nothing moves for as long (at least 2 s) after all
        ranks have made the call. With a partial `sync`, it is the time to wait for a result. A call
        that times out has contributed; the next call waits for its result first, and
        `herring.flush` returns it.
      algorithm: The algorithm, equal on all ranks. "herring" goes through the servers. "server"
        (rank 0 is the only server), "tree" (binomial), "ring", "butterfly" (recursive halving and
        doubling) and "doubling" (recursive doubling of the whole array) send messages between
        workers, over TCP even inside a node. They give the same bits on all ranks and in every run,
        but the bits differ between algorithms and numbers of ranks. They round 16-bit floats to
        their own dtype after each addition, which may overflow.
        "cuda-butterfly" is "butterfly" with the same bits; where an array is on a GPU, kernels
        compute its sums. docs/algorithms.md and docs/gpus.md say when to use which.
      sync: "solo", "majority", a `herring.Quorum` or a `herring.Replay` makes a partial all-reduce,
        which does not wait for all ranks ("average" and "sum" only). All calls with one `name`
        ("allreduce" by default) form a series. The n-th call returns the result of round n, which
        is the same on all ranks; a contribution that is too late for its round is in the next one.
        The first call waits for all ranks. `herring.flush` ends the series. With "solo" and
        "majority", `algorithm` may name one that sends messages between workers, which then also
        begin the rounds. "full" makes an ordinary all-reduce, once ranks have agreed on it. See
        docs/partial.md.

    Returns:
      `array`.

    Raises:
      InvalidArgumentError: The dtype, `op` or `algorithm` is not supported. Or `array` is not
        contiguous, is read-only or cannot be reached from here. Or an operation with this name is
        in flight.
    """
    if sync is not None:
        if (prescale, postscale) != (1.0, 1.0) and sync != "full":
            raise InvalidArgumentError(f"allreduce(sync={sync!r}) takes no prescale or postscale")
        if allreduce_in_rounds(array, op, sync, name, timeout, group, algorithm):
            note_write(array)
            return array
    scales = {"prescale": prescale, "postscale": postscale}
    call = CallOptions(name, timeout, group)
    _start(array, call, op=op, algorithm=algorithm, **scales).wait()
    return array


def allreduce_async(
    array: Any,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> Handle:
    """Starts an all-reduce in place and returns at once; see `herring.allreduce`.

    Args:
      array: An array of any shape and of a dtype that `herring.allreduce` takes; equal on all
        ranks. Leave it alone until `Handle.wait` has returned.

    Returns:
      A handle, whose `Handle.wait` returns `array`.
    """
    scales = {"prescale": prescale, "postscale": postscale}
    call = CallOptions(name, timeout, group)
    return _start(array, call, op=op, waits=False, algorithm=algorithm, **scales)


def _start(array: Any, call: CallOptions, **options: Any) -> Handle:
    return Handle(submit("allreduce", array, call, **options), array)
