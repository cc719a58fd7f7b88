"""The planned operation: gradients averaged round after round without negotiation.

Paper, section III-2 and III-A: every worker computes the same plan alone from the gradients in
production order; buffers are pushed in plan order as they fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import boolean_of, count_of, operator_of, seconds_of, shown, text_of
from herring.arrays.calls import called, named
from herring.arrays.collectives import allgather_object, check_same
from herring.arrays.devices import find_compiler, stream_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import job, require_running
from herring.errors import InvalidArgumentError

__all__ = ["PlannedReduction"]

_MOST_DEVICES = 1 << 16


class PlannedReduction:
    """An all-reduce over the arenas of a plan, in place, in rounds.

    Every rank makes it with the same arguments, and makes a group's planned operations in the same
    order.

    A round can carry a note of some bytes, by which ranks tell each other what became of the round.
    At each place every rank gets the largest byte that any active rank has given. So one byte for
    each rank says who, and one byte for each event says whether it happened anywhere.

    Args:
      gradients: (elements, dtype name) of every gradient, in production order.
      name: identifies the operation, for messages.
      op: "average", "sum", "min", "max" or "product".
      wire_dtype: "float16" or "bfloat16": float32 arenas travel between nodes in it.
      buffer_bytes: size of a fusion buffer; 0: chosen from model and cluster size.
      group: those who take part; None: all ranks.
      note_bytes: length of a round's note; 0: rounds have none.
      device: the number of a GPU on which gradients lie; None: they lie in host memory. Ranks may
        differ in it. After `place`, gradients are copied out of the arenas there when they are
        ready, and averages come back there, all in streams of their own: a round's only wait is
        that of `wait`, for the other ranks.

    Raises:
      InvalidArgumentError: a dtype or size that is not supported.
      MismatchError: ranks gave different arguments; the message lists them.
    """

    def __init__(
        self,
        gradients: Sequence[tuple[int, str]],
        *,
        name: str | None = None,
        op: str = "average",
        wire_dtype: str | None = None,
        buffer_bytes: int = 0,
        group: Group | None = None,
        note_bytes: int = 0,
        device: int | None = None,
    ) -> None:
        name = named(name, "planned", group)
        self._job = job()
        self._name = name
        # Also for a plan that this rank refuses: the next one must have the same on all ranks.
        handle = scope_of(group).handle
        stream = _core.next_stream(self._job, handle)
        with called("allgather", f"{name}.plan", group):
            listed = _listed(gradients)
            op = operator_of(op)
            buffer_bytes = count_of(buffer_bytes, "buffer_bytes")
            note_bytes = count_of(note_bytes, "note_bytes")
            device = None if device is None else count_of(device, "device", 0, _MOST_DEVICES)
            wire = "" if wire_dtype is None else text_of(wire_dtype, "wire_dtype")
        self._device = device
        self._arenas: list[Any] = []  # there
        # Ranks may differ in where their gradients lie, and must not in what they make of it.
        on_devices = any(allgather_object(device is not None, name=f"{name}.plan", group=group))
        with called("allgather", f"{name}.plan", group):
            if device is not None:
                find_compiler()
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
                on_devices,
            )
        bytes_by_dtype = ", ".join(f"{n} bytes of {dtype}" for dtype, n in self._planned.arenas)
        check_same(
            f"planned operation '{name}'",
            f"{len(listed)} gradients, {bytes_by_dtype}, op {op}, wire dtype {wire_dtype}, "
            f"notes of {note_bytes} bytes, plan {self._planned.signature:016x}",
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
        """(dtype name, bytes) per arena, one per dtype in order of first appearance."""
        return self._open.arenas

    @property
    def placements(self) -> list[tuple[int, int, int]]:
        """(arena, byte offset, bytes) of every gradient."""
        return self._open.placements

    @property
    def buffers(self) -> list[tuple[int, int, int]]:
        """(arena, byte offset, bytes) of every fusion buffer, in push order."""
        return self._open.buffers

    @property
    def contributors(self) -> int:
        """Workers whose gradients are in the last round's result."""
        return self._open.contributors

    @property
    def node_stage(self) -> str:
        """What adds the gradients of this node's ranks: "host", "staged" or "ipc".

        On GPUs the first two rounds are added by processors; in them the ranks learn what they can
        reach. See the setting of that name.
        """
        return self._open.node_stage

    def arena(self, index: int) -> np.ndarray:
        """Arena `index` as uint8 bytes, shared with the workers of this node."""
        return self._open.arena(count_of(index, "index", 0, len(self.arenas) - 1))

    def place(self, arenas: Sequence[Any]) -> None:
        """Says where the arenas of a plan with `device` lie there; once, before the first round.

        Args:
          arenas: one for each of `arenas`, of as many bytes and of any dtype, that can be exported
            by DLPack. The plan keeps them.

        Raises:
          InvalidArgumentError: one lies elsewhere, or has another size.
          DeviceError: the GPU or its driver has failed.
        """
        arenas = list(arenas)
        self._open.place(arenas)
        self._arenas = arenas

    def _stream(self) -> int:
        """In which what is queued for the arenas comes before what is queued from now on."""
        streams = {stream_of(arena) for arena in self._arenas}
        if len(streams) == 1 and None not in streams:
            return streams.pop()
        out = self._open.out_stream()
        for arena in self._arenas:
            arena.__dlpack__(stream=out)  # by which its library lets that stream wait
        return out

    def begin(self, active: bool = True) -> None:
        """Starts a round.

        Args:
          active: False: this worker has nothing to add; all its buffers go at once. On a GPU: when
            all is through that is queued for its arenas.

        Raises:
          InvalidArgumentError: the last round has not been waited for.
          ShutdownError: the job has ended, or this is a forked child of the process that joined it.
          HerringError: the job has failed.
        """
        require_running(self._job, f"'{self._name}'")
        active = boolean_of(active, "active")
        if self._device is None:
            self._open.begin(active)
        else:
            self._open.begin_on(self._stream(), active)

    def ready(self, index: int) -> None:
        """Gradient `index` of this round is in its place; any order, any thread.

        On a GPU: what writes it there has been queued.
        """
        self.ready_all([count_of(index, "index")])

    def ready_all(self, indices: Sequence[int]) -> None:
        """As `ready` for each of `indices`, in one call."""
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
        """Gives this rank's note of the round; any thread.

        If the plan has notes, an active rank gives one in each round, which is not complete without
        it. Given before the last gradient is ready, it leaves together with that.

        Args:
          note: bytes, or what has them (a bytearray, an array of uint8), `note_bytes` of them.

        Raises:
          InvalidArgumentError: another length, or a second note in the same round.
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
        """The notes of the last round: at each place the largest byte that an active rank gave.

        Raises:
          InvalidArgumentError: the round has not been waited for.
        """
        return self._open.notes

    def wait(self, timeout: float | None = None) -> None:
        """Returns when every buffer of the round is averaged in place, and the notes are there.

        On a GPU the averages are there for what is queued from then on.

        Args:
          timeout: seconds to wait here; None: until the operation's deadline.

        Raises:
          InvalidArgumentError: gradients, or the note, are missing; the message lists them.
          PeerLostError, TimeoutError: the round failed; the arenas are undefined.
        """
        seconds = seconds_of(timeout)
        self._open.wait(seconds)
        if self._device is None:
            return
        streams = {stream_of(arena) for arena in self._arenas}
        if not streams or None in streams:
            self._open.await_back(seconds)
        else:
            for stream in streams:
                self._open.join(stream)

    def close(self) -> None:
        """Lets go of the arenas; views of them stay valid."""
        self._planned = None
        self._arenas = []


def _listed(gradients: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    try:
        pairs = [(elements, dtype) for elements, dtype in gradients]
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "gradients must be a list of (elements, dtype name), such as [(1000, 'float32')], not "
            + shown(gradients)
        ) from None
    return [(count_of(elements, "elements"), str(dtype)) for elements, dtype in pairs]
