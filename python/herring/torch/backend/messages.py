"""Messages between two ranks of a process group, and from a rank to itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from herring.arrays.groups import Group, scope_of
from herring.arrays.messages import receive_async, send_async
from herring.errors import HerringError, InvalidArgumentError, MismatchError
from herring.torch.backend.reductions import movable
from herring.torch.backend.tensors import as_dense, copy_back
from herring.torch.backend.works import LocalWork, OperationWork, Owner
from herring.torch.devices import Moment
from herring.torch.ranges import work_range
from herring.torch.tensors import check_not_capturing


class _Received(OperationWork):
    """A receive under way, which can tell torch the rank that sent the message."""

    ranks: Sequence[int] = ()

    def _source_rank(self) -> int:
        self.wait()
        return self.ranks[self._source]

    source_rank = _source_rank


class Messages:
    """Sends and receives messages."""

    def __init__(self, owner: Owner, group: Group | None, places: Sequence[int], rank: int) -> None:
        self._owner = owner
        self._group = group
        self._places = list(places)
        self._ranks = sorted(range(len(places)), key=self._places.__getitem__)
        self._rank = rank
        self._lock = threading.Lock()
        self._own: dict[tuple[str, int], deque[tuple[torch.Tensor, Moment, LocalWork]]] = {}

    def send(self, tensor: torch.Tensor, to: int, tag: int, limit: timedelta) -> Any:
        """Starts a send, which is complete when the other rank receives the message."""
        self._check(to, "send")
        if to == self._rank:
            return self._to_myself("send", "receive", tensor, tag, limit)
        host = movable(as_dense(tensor, "send"))
        place = self._places[to]
        seconds = limit.total_seconds()
        name = f"to {to}, tag {tag}"
        with work_range("send", name):
            handle = send_async(host, place, tag, timeout=seconds, group=self._group)
        return OperationWork(self._owner, [handle._operation], [tensor], name=name)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, limit: timedelta) -> Any:
        """Starts a receive; `source` None means from any other rank."""
        if source is not None:
            self._check(source, "recv")
            if source == self._rank:
                return self._to_myself("receive", "send", tensor, tag, limit)
        host = as_dense(tensor, "recv")
        place = None if source is None else self._places[source]
        seconds = limit.total_seconds()
        name = f"from {'any rank' if source is None else source}, tag {tag}"
        with work_range("recv", name):
            handle = receive_async(movable(host), place, tag, timeout=seconds, group=self._group)
        then = None
        if host.data_ptr() != tensor.data_ptr():

            def then(operations: Any) -> None:
                copy_back(tensor, host)

        operations = [handle._operation]
        work = _Received(self._owner, operations, [tensor], then, follow=True, name=name)
        work.ranks = self._ranks
        return work

    def close(self) -> None:
        """Fails messages from this rank to itself that have no counterpart yet."""
        with self._lock:
            waiting = [work for queue in self._own.values() for *_, work in queue]
            self._own.clear()
        error = HerringError("the process group was destroyed before a message was received")
        if self._owner.aborted:
            error = self._owner.error()
        for work in waiting:
            work.done(error)

    def _check(self, other: int, what: str) -> None:
        if not 0 <= other < len(self._places):
            raise InvalidArgumentError(
                f"{what}: the other rank is {other}; it must be 0 to {len(self._places) - 1}"
            )
        if self._owner.aborted:
            raise self._owner.error()
        if self._group is not None:
            scope_of(self._group)  # raises an error if the group's job has ended

    def _to_myself(
        self, mine: str, other: str, tensor: torch.Tensor, tag: int, limit: timedelta
    ) -> LocalWork:
        """Pairs the n-th send with a tag and the n-th receive with this tag on this rank."""
        check_not_capturing([tensor], mine)
        work = LocalWork(self._owner, [tensor], self._rank, limit.total_seconds())
        with self._lock:
            waiting = self._own.get((other, tag))
            if not waiting:
                begun = (tensor, Moment([tensor]), work)
                self._own.setdefault((mine, tag), deque()).append(begun)
                return work
            met, its_moment, its_work = waiting.popleft()
        its_moment.wait()  # the other call may have been made in another stream
        source, target = (tensor, met) if mine == "send" else (met, tensor)
        error = None
        if source.numel() != target.numel() or source.dtype != target.dtype:
            error = MismatchError(
                f"a message of {source.numel()} elements of {source.dtype} does not fit a tensor "
                f"with {target.numel()} of {target.dtype}"
            )
        else:
            copy_back(target, as_dense(source, "send"))
        its_work.done(error)
        work.done(error)
        return work
