"""The planned operation: averages gradients round after round without negotiation.

The paper's sections III-2 and III-A describe it. Every worker computes the same plan alone, from
the gradients in production order. Fusion buffers are pushed in plan order as they fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import (
    Operator,
    Timeout,
    boolean_of,
    count_of,
    operator_of,
    seconds_of,
    shown,
)
from herring.arrays.calls import called, named
from herring.arrays.devices import stream_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain, check_same
from herring.arrays.runtime import job, require_running
from herring.arrays.wire import WireDType, is_packed, wire_of
from herring.base.units import counted
from herring.errors import InvalidArgumentError

__all__ = ["PlannedReduction"]

_MOST_DEVICES = 1 << 16


class PlannedReduction:
    """An all-reduce over the arenas of a plan, in place, in rounds.

    Every rank makes the planned operation with the same arguments. All ranks make a group's planned
    operations in the same order.

    A round can carry a note: bytes with which ranks tell one another how the round went. At each
    place every rank gets the largest byte that any active rank gave. One byte per rank can thus say
    which rank reports something, and one byte per event whether it happened on any rank.

    Args:
      gradients: The number of elements and the dtype name of every gradient, in production order.
      name: Identifies the operation in messages; None numbers the planned operations.
      op: "average", "sum", "min", "max" or "product".
      wire_dtype: "float16" or "bfloat16", in which float32 arenas travel between nodes. If all
        ranks have GPUs, float32 gradients leave the GPUs in it, and averages return in it. Or
        "fp8" (which is "fp8_e4m3"), "fp8_e5m2" or "int8", in which sums and averages of float32,
        float16 and bfloat16 travel, with a scale for each 32 numbers. A pair such as
        ``("fp8", "bfloat16")`` sends them in 8 bits, and averages come back in "bfloat16",
        "float16" or "float32".
      buffer_bytes: The size of a fusion buffer; 0 chooses it from the model and the cluster.
      note_bytes: The length of a round's note; 0 means that rounds have no note.
      device: The number of the GPU on which the gradients lie; None means host memory. It may
        differ between ranks. After `place`, Herring copies gradients out of the GPU's arenas when
        they are ready, and copies averages back, in streams of its own. Within a round only `wait`
        blocks, until the other ranks are done.
      divide_by_all: Whether averages divide by the number of all ranks, also in rounds that some
        begin with ``active=False``. By default averages divide by the number of active ranks.
      error_feedback: Whether what rounding to 8 bits loses is added to the next round's sum.

    Raises:
      InvalidArgumentError: A dtype or size is not supported.
      MismatchError: Ranks gave different arguments; the message lists them.
    """

    def __init__(
        self,
        gradients: Sequence[tuple[int, str]],
        *,
        name: str | None = None,
        op: Operator = "average",
        wire_dtype: WireDType | None = None,
        buffer_bytes: int = 0,
        group: Group | None = None,
        note_bytes: int = 0,
        device: int | None = None,
        divide_by_all: bool = False,
        error_feedback: bool = True,
    ) -> None:
        name = named(name, "planned", group)
        self._job = job()
        self._name = name
        # A plan that this rank refuses takes a stream too, so that the next plan has the same
        # stream on all ranks.
        handle = scope_of(group).handle
        stream = _core.next_stream(self._job, handle)
        with called("allgather", f"{name}.plan", group):
            listed = _listed(gradients)
            op = operator_of(op)
            buffer_bytes = count_of(buffer_bytes, "buffer_bytes")
            note_bytes = count_of(note_bytes, "note_bytes")
            device = None if device is None else count_of(device, "device", 0, _MOST_DEVICES)
            wire = wire_of(wire_dtype)
            divide_by_all = boolean_of(divide_by_all, "divide_by_all")
            error_feedback = boolean_of(error_feedback, "error_feedback")
            casts = device is not None and wire != "" and not is_packed(wire)
            casts = casts and _casts(device, wire, name)
        self._device = device
        self._arenas: list[Any] = []  # the arenas on the GPU
        # Gradients may lie in different memory on different ranks, but all ranks must agree on how
        # to reduce them.
        places = allgather_plain((device is not None, casts), name=f"{name}.plan", group=group)
        self._on_devices = any(on_device for on_device, _ in places)
        with called("allgather", f"{name}.plan", group):
            self._planned: _core.Planned | None = _core.Planned.create(
                self._job,
                listed,
                name,
                op,
                wire,
                buffer_bytes,
                note_bytes,
                stream,
                handle,
                device,
                self._on_devices,
                all(casts for _, casts in places),
                divide_by_all,
                error_feedback,
            )
        bytes_by_dtype = ", ".join(f"{n} bytes of {dtype}" for dtype, n in self._planned.arenas)
        check_same(
            f"planned operation '{name}'",
            f"{counted(len(listed), 'gradient')}, {bytes_by_dtype}, op {op}"
            f"{' divided by all ranks' if divide_by_all else ''}, wire dtype {wire or None}"
            f"{'' if error_feedback else ' without error feedback'}, notes of {note_bytes} bytes, "
            f"plan {self._planned.signature:016x}",
            name=f"{name}.plan",
            group=group,
        )

    @property
    def _open(self) -> _core.Planned:
        if self._planned is None:
            raise InvalidArgumentError("this planned operation is closed")
        return self._planned

    @property
    def arenas(self) -> list[tuple[str, int]]:
        """The dtype name and bytes of every arena; one arena per dtype, in order of appearance."""
        return self._open.arenas

    @property
    def placements(self) -> list[tuple[int, int, int]]:
        """The arena, byte offset and bytes of every gradient."""
        return self._open.placements

    @property
    def buffers(self) -> list[tuple[int, int, int]]:
        """The arena, byte offset and bytes of every fusion buffer, in push order."""
        return self._open.buffers

    @property
    def on_devices(self) -> bool:
        """Whether the gradients of any rank lie on a GPU; the same on all ranks."""
        return self._on_devices

    @property
    def contributors(self) -> int:
        """The number of workers whose gradients are in the last round's result."""
        return self._open.contributors

    @property
    def node_stage(self) -> str:
        """What adds the gradients of this node's ranks: "host", "staged" or "ipc".

        For gradients on GPUs, processors add in the first two rounds, in which the ranks find out
        whose memory their GPUs can reach. The setting ``HERRING_NODE_STAGE`` overrides the choice.
        """
        return self._open.node_stage

    def arena(self, index: int) -> np.ndarray:
        """Returns arena `index` as uint8 bytes, shared with the workers of this node."""
        return self._open.arena(count_of(index, "index", 0, len(self.arenas) - 1))

    @property
    def local_size(self) -> int:
        """The number of the group's ranks on this node, whose gradients are summed here first."""
        return self._open.local_size

    def residual(self, index: int) -> np.ndarray:
        """Returns what rounding to 8 bits has lost of arena `index` and is still to be sent.

        Args:
          index: The number of the arena, as in `arena`.

        Returns:
          One float32 for each element of the arena. It is 0 without error feedback, on one node,
          and where another rank of this node sends the element.

        Raises:
          InvalidArgumentError: The round has not been waited for.
        """
        return self._open.residual(count_of(index, "index", 0, len(self.arenas) - 1))

    def set_residual(self, index: int, values: np.ndarray) -> None:
        """Replaces the residual of arena `index`, such as after a restart.

        Args:
          index: The number of the arena, as in `arena`.
          values: One float32 for each element of the arena. Those of elements that another rank of
            this node sends are ignored.

        Raises:
          InvalidArgumentError: The round has not been waited for, or the size is another.
        """
        index = count_of(index, "index", 0, len(self.arenas) - 1)
        self._open.set_residual(index, np.ascontiguousarray(values, np.float32).reshape(-1))

    def place(self, arenas: Sequence[Any]) -> None:
        """Says where the arenas of a plan with `device` are on the GPU; once, before any round.

        Args:
          arenas: One GPU array for each entry of the property `arenas`, with as many bytes and of
            any dtype, that can be exported by DLPack. The plan keeps them alive.

        Raises:
          InvalidArgumentError: An array is not on the plan's GPU, or has another size.
          DeviceError: The GPU or its driver failed.
        """
        arenas = list(arenas)
        self._open.place(arenas)
        self._arenas = arenas

    def _stream(self) -> int:
        """Returns a stream that comes after the work queued for the arenas until now."""
        streams = {stream_of(arena) for arena in self._arenas}
        if len(streams) == 1 and (stream := streams.pop()) is not None:
            return stream
        out = self._open.out_stream()
        for arena in self._arenas:
            arena.__dlpack__(stream=out)  # the arena's library makes that stream wait for its work
        return out

    def begin(self, active: bool = True) -> None:
        """Starts a round.

        Args:
          active: False means that this worker has nothing to add. All its buffers are then sent at
            once; on a GPU, after the work that is queued for its arenas.

        Raises:
          InvalidArgumentError: The last round has not been waited for.
          ShutdownError: The job has ended, or this process is a forked child of the one that joined
            it.
          HerringError: The job failed.
        """
        require_running(self._job, f"'{self._name}'")
        active = boolean_of(active, "active")
        if self._device is None:
            self._open.begin(active)
        else:
            self._open.begin_on(self._stream(), active)

    def ready(self, index: int) -> None:
        """Says that gradient `index` of this round is in its place; any order, any thread.

        On a GPU the work that writes the gradient must have been queued.
        """
        self.ready_all([count_of(index, "index")])

    def ready_all(self, indices: Sequence[int]) -> None:
        """Says in one call that the gradients in `indices` are in their places; any thread."""
        try:
            if self._device is None:
                self._open.ready_all(indices)
            else:
                self._open.ready_on(self._stream(), indices)
        except TypeError:
            raise InvalidArgumentError(
                f"indices is {shown(indices)}; it must be a list of integers"
            ) from None

    def note(self, note: bytes) -> None:
        """Gives this rank's note for the round; any thread may call it.

        If the plan has notes, each round of an active rank needs one note to be complete. A note
        that is given before the last gradient is ready leaves together with that gradient.

        Args:
          note: `note_bytes` bytes, or an object that has them (a bytearray, an array of uint8).

        Raises:
          InvalidArgumentError: The note has another length, or is the second in this round.
        """
        try:
            view = memoryview(note)
        except (TypeError, ValueError):
            view = None
        if view is None or view.itemsize != 1:
            raise InvalidArgumentError(f"note is {shown(note)}; it must be bytes")
        self._open.note(view.tobytes())

    @property
    def notes(self) -> bytes:
        """The combined note of the last round: at each place the largest byte of any active rank.

        Raises:
          InvalidArgumentError: The round has not been waited for.
        """
        return self._open.notes

    def wait(self, timeout: Timeout = None) -> None:
        """Returns when all buffers of the round are reduced in place and the note has arrived.

        On a GPU, work that is queued after the return sees the results.

        Args:
          timeout: Seconds to wait here; None means to wait until the operation's deadline.

        Raises:
          InvalidArgumentError: Gradients or the note are missing; the message lists them. Or a CUDA
            graph is being captured; the round goes on.
          PeerLostError: A worker or a server died or left. The arenas are undefined in host memory
            and have NaNs on a GPU: everywhere, or in this rank's part if neighbours' GPUs may still
            read the rest. All later calls raise the same error.
          TimeoutError: The round was not complete in time. After its own deadline the job fails.
        """
        seconds = seconds_of(timeout)
        streams = {stream_of(arena) for arena in self._arenas}
        known = [stream for stream in streams if stream is not None]
        self._open.wait(seconds, known)
        if self._device is None:
            return
        if not streams or len(known) < len(streams):
            self._open.await_back(seconds)
        else:
            for stream in known:
                self._open.join(stream)

    def close(self) -> None:
        """Releases the arenas; existing views of them stay valid."""
        self._planned = None
        self._arenas = []


def _casts(device: int, wire_dtype: str, name: str) -> bool:
    """Returns whether the GPU can cast gradients to the wire dtype; the log says why it cannot."""
    reason = _core.load_casts(device, wire_dtype)
    if reason:
        _core.log_warning(
            f"'{name}': float32 gradients leave GPU {device} in 32 bits, and processors cast them "
            f"to {wire_dtype}: {reason}"
        )
    return not reason


def _listed(gradients: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    try:
        pairs = [(elements, dtype) for elements, dtype in gradients]
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "gradients must be a list of (elements, dtype name), such as [(1000, 'float32')], not "
            + shown(gradients)
        ) from None
    return [(count_of(elements, "elements"), str(dtype)) for elements, dtype in pairs]
