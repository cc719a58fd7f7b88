"""The reductions of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.base.split import even_parts
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.backend.base import BaseProcessGroup, routed
from herring.torch.backend.listed import result_of
from herring.torch.backend.reductions import (
    Reduction,
    divided,
    movable,
    place_for,
    reduction_of,
    typed,
)
from herring.torch.backend.sparse import SparseSum
from herring.torch.backend.tensors import (
    as_dense,
    copy_back,
    dense_there,
    exchanges_lists,
    list_of,
    operator_of,
    packs,
    stays,
)
from herring.torch.backend.works import JoinedWork, Operations, back_to


class ReducingProcessGroup(BaseProcessGroup):
    """A process group with reductions."""

    @routed
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduces a tensor over all ranks, in place.

        Args:
          tensors: A tensor, or a list of one; any shape, dtype, layout and strides.

        Returns:
          The work; its outputs are the tensors.
        """
        del timeout
        tensors = list_of(tensors)
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        return self._allreduce(tensors[0], tensors, opts)

    def _allreduce(self, tensor: torch.Tensor, outputs: list[torch.Tensor], opts: Any) -> Any:
        if tensor.layout == torch.sparse_coo:
            with self._call("allgather") as name:
                steps = SparseSum(tensor, operator_of(opts), self.size())
            parts = [steps.indices, steps.values]
            operation = self._start("allgather", parts, name, opts, steps.about, listed=True)
            return self._work(opts, [operation], outputs, steps.finish)
        with self._call("allreduce") as name:
            reduction = reduction_of(operator_of(opts), tensor.dtype, self.size())
            plain = reduction.fold is None and reduction.divisor == 1
            what = f"all_reduce of {tensor.dtype}, {operator_of(opts)}"
            host = (dense_there if plain else as_dense)(tensor, what)
            there = plain and devices.gpu_of(host) is not None
        if reduction.fold is not None:
            return self._folded(reduction, host, tensor, outputs, name, opts)
        wire = reduction.wire(host)
        taken = devices.exported(wire) if there else wire
        operation = self._start(
            "allreduce",
            taken,
            name,
            opts,
            reduction.about,
            op=reduction.op,
            prescale=reduction.prescale,
        )
        if plain:
            return self._work(opts, [operation], outputs, back_to(taken, there, host, tensor))

        def then(_: Operations) -> None:
            copy_back(tensor, divided(host, reduction.divisor))

        return self._work(opts, [operation], outputs, then)

    def _folded(
        self,
        reduction: Reduction,
        host: torch.Tensor,
        tensor: torch.Tensor,
        outputs: list[torch.Tensor],
        name: str,
        opts: Any,
    ) -> Any:
        """Applies an operator that the core lacks: ranks reduce parts, then gather the parts.

        It sends the same bytes as a ring. It folds in rank order, so all ranks get the same bits.
        """
        ranks, flat = self.size(), movable(host)
        width = flat.numel() // max(host.numel(), 1)
        splits = [count * width for count in even_parts(host.numel(), ranks)]
        about = f"all_reduce, {reduction.about}"
        first = self._start("alltoall", flat, name, opts, about, splits=splits)

        def fold(operations: Operations) -> Any:
            mine = typed(operations[0].result(), tensor.dtype).view(ranks, -1)
            part = movable(reduction.fold(mine))  # type: ignore[misc]
            second = self._start("allgather", part, f"{name}.parts", opts, about)
            return [second], finish

        def finish(operations: Operations) -> None:
            copy_back(tensor, typed(operations[0].result(), tensor.dtype))

        return self._work(opts, [first], outputs, fold)

    @routed
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors over all ranks, in place; packs small ones of equal dtype."""
        works = []
        for pack in packs(list_of(tensors)):
            if len(pack) == 1:
                works.append(self._allreduce(pack[0], pack, opts))
                continue
            with self._call("allreduce") as name:
                reduction = reduction_of(operator_of(opts), pack[0].dtype, self.size())
                there = all(map(stays, pack)) and devices.common_gpu(pack) is not None
                hosts = [
                    tensor.data if there else as_dense(tensor, "all_reduce_coalesced")
                    for tensor in pack
                ]
            if reduction.fold is not None or reduction.divisor != 1:
                works += [self._allreduce(tensor, [tensor], opts) for tensor in pack]
                continue
            about = f"{[list(one.shape) for one in pack]} of {pack[0].dtype}"
            more = {"op": reduction.op, "prescale": reduction.prescale, "listed": True}
            taken: list[Any] = [reduction.wire(host) for host in hosts]
            if there:
                taken = list(map(devices.exported, taken))
            operation = self._start("allreduce", taken, name, opts, about, **more)

            def spread(_: Any, pack: Any = pack, hosts: Any = hosts) -> None:
                for tensor, host in zip(pack, hosts):
                    copy_back(tensor, host)

            then = back_to(taken, there) or spread
            works.append(self._work(opts, [operation], pack, then))
        return works[0] if len(works) == 1 else JoinedWork(self._owner, works)

    @routed
    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Reduces a tensor over all ranks, and leaves the result in the root's tensor."""
        (tensor,) = tensors = list_of(tensors)
        root = self._root(opts)
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), tensor.dtype, self.size())
            host = as_dense(tensor, "reduce")
        if reduction.about:
            reduction = reduction._replace(about=f"{reduction.about} to rank {root}")
        return self._scattered(
            reduction, host, self._all_to(root, host), tensor, tensors, name, opts
        )

    def _scattered(
        self,
        reduction: Reduction,
        host: torch.Tensor,
        counts: list[int],
        output: torch.Tensor,
        outputs: list[torch.Tensor],
        name: str,
        opts: Any,
    ) -> Any:
        """Reduces so that each rank gets its part; `counts` are the elements of the parts."""
        mine, about = counts[self._places[self.rank()]], reduction.about
        if reduction.fold is not None:
            flat = movable(host)
            width = flat.numel() // max(host.numel(), 1)
            splits = [count * width for count in counts]
            about = f"reduce_scatter of {counts} elements, {about}"
            operation = self._start("alltoall", flat, name, opts, about, splits=splits)
        else:
            wire = reduction.wire(host).reshape(-1)
            width = wire.numel() // max(host.numel(), 1)
            splits = [count * width for count in counts]
            more = {"op": reduction.op, "prescale": reduction.prescale, "splits": splits}
            more["into"] = place_for(output, wire)
            operation = self._start("reduce_scatter", wire, name, opts, about, **more)

        def then(operations: Operations) -> None:
            if mine == 0:
                return
            placed = operations[0].placed
            found = output.data if placed else typed(operations[0].result(), output.dtype)
            if reduction.fold is not None:
                found = reduction.fold(found.view(self.size(), -1))
            copy_back(output, divided(found, reduction.divisor))

        return self._work(opts, [operation], outputs, then)

    @routed
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Reduces lists of tensors over all ranks; rank r gets the r-th result.

        Args:
          inputs: A list of one list, which has a tensor for each rank. The tensors of a list may
            have different sizes; the sizes must be equal on all ranks.

        Returns:
          The work; its output is the tensor in `outputs`.
        """
        outputs = list_of(outputs)
        lists = inputs if isinstance(inputs[0], (list, tuple)) else [inputs]
        return self._joined(
            [self._reduce_blocks(out, blocks, opts) for out, blocks in zip(outputs, lists)]
        )

    def _reduce_blocks(
        self, output: torch.Tensor, blocks: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), output.dtype, self.size())
            self._require_one_each(blocks, "reduce_scatter")
            self._require_size(blocks[self.rank()], output, "reduce_scatter")
            host, counts = self._blocks.joined(blocks, "reduce_scatter")
        return self._scattered(reduction, host, counts, output, [output], name, opts)

    @routed
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduces a tensor over all ranks; rank r gets its r-th part, of the size of `output`."""
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), output.dtype, self.size())
            if input.numel() != output.numel() * self.size() or input.dtype != output.dtype:
                raise InvalidArgumentError(
                    f"reduce_scatter: the input has {input.numel()} elements of {input.dtype}; it "
                    f"must have {self.size()} times the {output.numel()} of the output, of "
                    f"{output.dtype}"
                )
            plain = reduction.fold is None and reduction.divisor == 1
            listed = plain and exchanges_lists(input)
            what = "reduce_scatter_tensor" if plain else f"reduce_scatter_tensor of {input.dtype}"
            dense = (dense_there if listed else as_dense)(input, what)
            host, counts = self._blocks.equal(dense.reshape(-1))
        if listed:
            return self._scattered_list(reduction, host, output, name, opts)
        return self._scattered(reduction, host, counts, output, [output], name, opts)

    def _scattered_list(
        self, reduction: Reduction, dense: torch.Tensor, output: torch.Tensor, name: str, opts: Any
    ) -> Any:
        flat = reduction.wire(dense).reshape(-1)
        more = {"op": reduction.op, "prescale": reduction.prescale}
        operation = self._start_list("reduce_scatter", flat, name, opts, reduction.about, **more)

        def then(operations: Operations) -> None:
            target = output.data if output.is_contiguous() else None
            into = None if target is None else reduction.wire(target).reshape(-1)
            found = result_of(operations[0], flat, flat.numel() // self.size(), into)
            copy_back(output, found.view(output.dtype))

        return self._work(opts, [operation], [output], then)

    _reduce_scatter_base = reduce_scatter_single

    @routed
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Does several `reduce_scatter_single` as one work."""
        works = [
            self._plain(self.reduce_scatter_single, o, i, opts) for o, i in zip(outputs, inputs)
        ]
        return self._joined(works)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
