"""Starts Horovod's collectives on the tensors of any framework.

This module contains what is the same for all frameworks; `Tensors` is the interface to the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring import _core
from herring.arrays.collectives import checked_splits
from herring.arrays.grouped import results_of
from herring.base.split import even_parts
from herring.errors import InvalidArgumentError
from herring.horovod.common.adasum import adasum, require_power_of_two
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import Adasum, Average, operator_of, scattering_operator
from herring.horovod.common.process_sets import ProcessSet, global_process_set, root_in
from herring.horovod.common.rounds import joined_as_zeros
from herring.horovod.common.tensors import Tensors


class Reduction(NamedTuple):
    """How the values of all ranks are combined."""

    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0

    @property
    def scaled(self) -> bool:
        """Whether one of the factors is not 1."""
        return self.prescale != 1.0 or self.postscale != 1.0

    def check(self, kind: str) -> None:
        """Raises InvalidArgumentError for a factor of NaN, which would equal no other NaN."""
        for name, factor in ("prescale", self.prescale), ("postscale", self.postscale):
            if math.isnan(factor):
                raise InvalidArgumentError(f"{kind}: {name}_factor is nan; it must be a number")

    def text(self, *, prescale: bool = True, postscale: bool = True) -> str:
        """Describes factors that the core does not see, to follow a description of tensors."""
        text = ""
        if prescale and self.prescale != 1.0:
            text = f"; prescale_factor {float(self.prescale)}"
        shown = postscale and self.postscale != 1.0
        return text + (f"; postscale_factor {float(self.postscale)}" if shown else "")


class Starter:
    """Starts calls with one name in one process set; each method returns a call under way.

    Args:
      queues: whether to wait for an earlier call with the same name instead of raising an error.
    """

    tensors: Tensors  # handles the framework's tensors; each framework's subclass sets it

    def __init__(
        self,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        queues: bool = False,
    ) -> None:
        self.name = name
        self.process_set = process_set
        self._queues = queues

    def _call(self, kind: str, core_kind: str) -> Call:
        return Call(kind, core_kind, self.name, self.process_set, queues=self._queues)

    def _listed(self, tensors: Any, kind: str) -> list[Any]:
        if not isinstance(tensors, (list, tuple)):
            raise InvalidArgumentError(
                f"{kind} takes a list of tensors, got {type(tensors).__name__}"
            )
        return [self.tensors.checked(tensor, kind) for tensor in tensors]

    def _text(self, dense: Any) -> str:
        return f"{self.tensors.dtype_of(dense)} {list(dense.shape)}"

    def _text_of_rows(self, dense: Any) -> str:
        """Describes what must be equal on all ranks if the number of rows may differ."""
        return f"{self.tensors.dtype_of(dense)} [{', '.join(map(str, ['n', *dense.shape[1:]]))}]"

    def _about(self, dense: Sequence[Any], hosts: Sequence[Any], *, listed: bool) -> str:
        """Describes tensors whose dtypes or shapes the core does not see in the host tensors.

        Without this text, ranks whose tensors differ would not notice, because several dtypes and
        shapes have the same form on the host.
        """
        if listed:
            return self._text_of_list([self._text(one) for one in dense])
        same = hosts[0].dtype == dense[0].dtype and hosts[0].shape == dense[0].shape
        return "" if same else self._text(dense[0])

    def _text_of_list(self, texts: Sequence[str]) -> str:
        """Joins the texts of a list's tensors in the form that the core gives lists of arrays."""
        count = f"{len(texts)} array{'' if len(texts) == 1 else 's'}"
        return f"{count}: {', '.join(texts)}" if texts else count

    def _kept(
        self, tensors: Sequence[Any], dense: Sequence[Any], *, in_place: bool = False
    ) -> list[Any]:
        return list(tensors) if in_place else [*map(self.tensors.like, tensors, dense)]

    def _sent(
        self, dense: Sequence[Any], operation: str, how: Reduction, kind: str, *, own: bool
    ) -> tuple[list[Any], float]:
        """Returns host tensors to reduce, and the factor by which the core must multiply them.

        Integers that are averaged or scaled are converted to float64 and multiplied here. If there
        are such integers, floats in the same list are multiplied here, too.
        """
        wide = self._wide(dense, operation, how, kind)
        left = 1.0 if any(wide) else how.prescale
        hosts = []
        for one, widens in zip(dense, wide):
            if widens:
                hosts.append(self.tensors.widened(one, how.prescale))
                continue
            host = self.tensors.reducible(one, kind, own=own)
            hosts.append(host if left == how.prescale else self.tensors.scaled(host, how.prescale))
        return hosts, left

    def _wide(self, dense: Sequence[Any], operation: str, how: Reduction, kind: str) -> list[bool]:
        """Returns for each tensor whether it is reduced in float64."""
        combined = operation != "average" and not how.scaled
        return [not self.tensors.has_floats(one, kind) and not combined for one in dense]

    def _start_allreduce(
        self,
        call: Call,
        dense: Sequence[Any],
        operation: str,
        how: Reduction,
        kind: str,
        *,
        own: bool,
    ) -> list[Any]:
        """Starts an all-reduce of a list or one tensor; returns the tensors for the results."""
        how.check(kind)
        listed = kind.startswith("grouped")
        stays = self.tensors.stay(dense) and not any(self._wide(dense, operation, how, kind))
        if stays:
            hosts, prescale = [self.tensors.staying(one, own=own) for one in dense], how.prescale
        else:
            hosts, prescale = self._sent(dense, operation, how, kind, own=own)
        taken = [self.tensors.exported(one) for one in hosts] if stays else hosts
        call.start(
            taken if listed else taken[0],
            listed=listed,
            about=self._about(dense, hosts, listed=listed)
            + how.text(prescale=prescale != how.prescale, postscale=False),
            op=operation,
            prescale=prescale,
            postscale=how.postscale,
            divisor=call.scope.size if operation == "average" and joined_as_zeros() else 0,
        )
        return hosts

    def _start_broadcast(
        self, call: Call, dense: Sequence[Any], root: int, kind: str, *, own: bool
    ) -> list[Any]:
        """Starts a broadcast of a list or one tensor; returns the tensors for the results."""
        listed = kind.startswith("grouped")
        if self.tensors.stay(dense):
            hosts = [self.tensors.staying(one, own=own) for one in dense]
            taken = [self.tensors.exported(one) for one in hosts]
        else:
            taken = hosts = [self.tensors.movable(one, kind, own=own) for one in dense]
        about = self._about(dense, hosts, listed=listed)
        call.start(taken if listed else taken[0], listed=listed, about=about, root=root)
        return hosts

    def _results(self, hosts: Sequence[Any], kept: Sequence[Any], in_place: bool) -> list[Any]:
        """Returns the tensors given, or new ones, with the contents of host tensors."""
        found = [self.tensors.narrowed(host, like) for host, like in zip(hosts, kept)]
        if not in_place:
            return [self.tensors.new(one, like) for one, like in zip(found, kept)]
        for one, tensor in zip(found, kept):
            self.tensors.write(one, tensor)
        return list(kept)

    def allreduce(self, tensor: Any, how: Reduction, *, in_place: bool = False) -> Call:
        """Starts an all-reduce; its result is `tensor` if `in_place`, else a new tensor."""
        kind = "allreduce"
        with self._call(kind, "allgather" if how.op == Adasum else kind) as call:
            operation = operator_of(how.op, kind)
            dense = self.tensors.checked(tensor, kind)
            kept = self._kept([tensor], [dense], in_place=in_place)
            if how.op == Adasum:
                combined = self._start_adasum(call, [dense], kept, how, kind)
                call.finish = lambda: self._results(combined(), kept, in_place)[0]
                return call
            hosts = self._start_allreduce(call, [dense], operation, how, kind, own=not in_place)
            call.finish = lambda: self._results(hosts, kept, in_place)[0]
        return call

    def grouped_allreduce(
        self, tensors: Sequence[Any], how: Reduction, *, in_place: bool = False
    ) -> Call:
        """Starts an all-reduce of a list, which succeeds or fails as a whole.

        The result is a list of the tensors given if `in_place`, else of new tensors.
        """
        kind = "grouped_allreduce"
        adds = how.op == Adasum
        with self._call(kind, "allgather" if adds else "allreduce") as call:
            operation = operator_of(how.op, kind)
            dense = self._listed(tensors, kind)
            kept = self._kept(tensors, dense, in_place=in_place)
            if adds:
                combined = self._start_adasum(call, dense, kept, how, kind)
                call.finish = lambda: self._results(combined(), kept, in_place)
                return call
            hosts = self._start_allreduce(call, dense, operation, how, kind, own=not in_place)
            call.finish = lambda: self._results(hosts, kept, in_place)
        return call

    def _start_list(self, call: Call, hosts: Sequence[Any], **options: Any) -> _core.Operation:
        return call.start(list(hosts), listed=True, **options)

    def _start_adasum(
        self, call: Call, dense: Sequence[Any], kept: Sequence[Any], how: Reduction, kind: str
    ) -> Callable[[], list[Any]]:
        """Starts to gather the vectors of all ranks; returns a function that combines them."""
        how.check(kind)
        require_power_of_two(call.scope.size)
        for one in dense:
            if not self.tensors.has_floats(one, kind):
                raise InvalidArgumentError(
                    f"Adasum is for floats, not {self.tensors.dtype_of(one)}"
                )
        raw = [self.tensors.bytes_of(one, kind) for one in dense]
        whole = np.concatenate([*raw, np.empty(0, np.uint8)])
        about = "; ".join(map(self._text, dense)) + how.text()
        operation = call.start(whole.reshape(1, -1), about=about)
        ends = np.cumsum([len(one) for one in raw])

        def combined() -> list[Any]:
            everyone = operation.result().view(np.uint8).reshape(call.scope.size, len(whole))
            results = []
            for columns, like in zip(np.split(everyone, ends, axis=1), kept):
                rows = [self.tensors.exact(row.copy(), like) for row in columns]
                if how.prescale != 1.0:
                    rows = [np.multiply(row, how.prescale, dtype=row.dtype) for row in rows]
                found = adasum(rows)
                found = np.multiply(found, how.postscale, dtype=found.dtype)
                results.append(found.reshape(like.shape))
            return results

        return combined

    def allgather(self, tensor: Any) -> Call:
        """Starts an all-gather; its result is a new tensor."""
        kind = "allgather"
        with self._call(kind, kind) as call:
            dense = self.tensors.checked(tensor, kind)
            rows, like = self.tensors.rows(dense, kind), self.tensors.like(tensor, dense)
            operation = call.start(self.tensors.words(rows), about=self._text_of_rows(dense))

            call.finish = lambda: self._gathered(operation.result(), like, sum(operation.counts))
        return call

    def _gathered(self, found: np.ndarray, like: Any, rows: int) -> Any:
        return self.tensors.new(self.tensors.viewed(found, like, (rows, *like.shape[1:])), like)

    def grouped_allgather(self, tensors: Sequence[Any], how: Reduction | None = None) -> Call:
        """Starts an all-gather of a list, which succeeds or fails as a whole.

        The result is a list of new tensors.

        Args:
          how: how the caller reduces what it gets, which must be the same on all ranks.
        """
        kind = "grouped_allgather"
        with self._call(kind, "allgather") as call:
            if how is not None:
                how.check("allreduce")
            dense = self._listed(tensors, kind)
            rows = [self.tensors.rows(one, kind) for one in dense]
            likes = self._kept(tensors, dense)
            about = self._text_of_list([self._text_of_rows(one) for one in dense])
            if how is not None:
                about += f"; op {operator_of(how.op, kind)}{how.text()}"
            operation = self._start_list(call, rows, about=about)
            call.finish = lambda: [
                self._gathered(part, like, len(part))
                for part, like in zip(results_of(operation), likes)
            ]
        return call

    def broadcast(self, tensor: Any, root_rank: int, *, in_place: bool = False) -> Call:
        """Starts a broadcast; its result is `tensor` if `in_place`, else a new tensor.

        `root_rank` is a rank of the job, which must be in the process set.
        """
        kind = "broadcast"
        with self._call(kind, kind) as call:
            dense = self.tensors.checked(tensor, kind)
            root = root_in(self.process_set, operator.index(root_rank))
            kept = self._kept([tensor], [dense], in_place=in_place)
            hosts = self._start_broadcast(call, [dense], root, kind, own=not in_place)
            call.finish = lambda: self._broadcast(hosts, kept, in_place)[0]
        return call

    def _broadcast(
        self, hosts: Sequence[Any], kept: Sequence[Any], in_place: bool = False
    ) -> list[Any]:
        return self._results([*map(self.tensors.moved, hosts, kept)], kept, in_place)

    def grouped_broadcast(self, tensors: Sequence[Any], root_rank: int) -> Call:
        """Starts a broadcast of a list, which succeeds or fails as a whole.

        The result is a list of new tensors.
        """
        kind = "grouped_broadcast"
        with self._call(kind, "broadcast") as call:
            dense = self._listed(tensors, kind)
            root = root_in(self.process_set, operator.index(root_rank))
            likes = self._kept(tensors, dense)
            hosts = self._start_broadcast(call, dense, root, kind, own=True)
            call.finish = lambda: self._broadcast(hosts, likes)
        return call

    def alltoall(self, tensor: Any, splits: Any) -> Call:
        """Starts an all-to-all.

        The result is a new tensor, and the number of rows from each rank (int32).
        """
        kind = "alltoall"
        with self._call(kind, kind) as call:
            dense = self.tensors.checked(tensor, kind)
            rows, like = self.tensors.rows(dense, kind), self.tensors.like(tensor, dense)
            given = splits.tolist() if hasattr(splits, "tolist") else splits
            counts = checked_splits(kind, len(rows), given, call.group)
            about = self._text_of_rows(dense)
            items = math.prod(rows.shape[1:])
            if items:
                operation = call.start(self.tensors.words(rows), splits=counts, about=about)
            else:  # Rows have no elements, so only the numbers of rows are sent.
                parts = [1] * call.scope.size
                operation = call.start(np.array(counts, np.int64), splits=parts, about=about)

            def finish() -> tuple[Any, Any]:
                found = operation.result()
                if items:
                    came = np.array(operation.counts) // items
                else:
                    came, found = found.view(np.int64), np.empty(0, np.uint8)
                counts = self.tensors.counts(came.astype(np.int32), like)
                return self._gathered(found, like, int(came.sum())), counts

            call.finish = finish
        return call

    def reducescatter(self, tensor: Any, how: Reduction) -> Call:
        """Starts a reduce-scatter; its result is a new tensor."""
        kind = "reducescatter"
        with self._call(kind, "reduce_scatter") as call:
            by = scattering_operator(how.op, kind)
            dense = self.tensors.checked(tensor, kind)
            like = self.tensors.like(tensor, dense)
            (host,), prescale = self._scattered([dense], by, how, kind)
            operation = call.start(
                host,
                about=self._text(dense)
                + how.text(prescale=prescale != how.prescale, postscale=False),
                op=by,
                prescale=prescale,
                postscale=how.postscale,
            )
            mine = even_parts(len(dense), call.scope.size)[call.scope.rank]

            def finish() -> Any:
                found = self.tensors.viewed(operation.result(), host, (mine, *like.shape[1:]))
                return self.tensors.new(self.tensors.narrowed(found, like), like)

            call.finish = finish
        return call

    def grouped_reducescatter(self, tensors: Sequence[Any], how: Reduction) -> Call:
        """Starts a reduce-scatter of a list, which succeeds or fails as a whole.

        The result is a list of new tensors.
        """
        kind = "grouped_reducescatter"
        with self._call(kind, "reduce_scatter") as call:
            by = scattering_operator(how.op, kind)
            dense = self._listed(tensors, kind)
            likes = self._kept(tensors, dense)
            hosts, prescale = self._scattered(dense, by, how, kind)
            operation = self._start_list(
                call,
                hosts,
                about=self._about(dense, hosts, listed=True)
                + how.text(prescale=prescale != how.prescale, postscale=False),
                op=by,
                prescale=prescale,
                postscale=how.postscale,
            )
            call.finish = lambda: self._results(
                [
                    self.tensors.viewed(one, host, one.shape)
                    for one, host in zip(results_of(operation), hosts)
                ],
                likes,
                in_place=False,
            )
        return call

    def _scattered(
        self, dense: Sequence[Any], by: str, how: Reduction, kind: str
    ) -> tuple[list[Any], float]:
        how.check(kind)
        if any(not one.shape for one in dense):
            raise InvalidArgumentError(f"{kind} needs tensors with at least one dimension")
        return self._sent(dense, by, how, kind, own=False)
