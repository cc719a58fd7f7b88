"""Planned rounds for the buckets of torch's own DistributedDataParallel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from herring.arrays.apart import call_apart
from herring.arrays.arguments import boolean_of, shown
from herring.arrays.calls import named
from herring.arrays.groups import Group
from herring.arrays.planned import PlannedReduction
from herring.arrays.runtime import is_running, job
from herring.errors import InvalidArgumentError
from herring.torch.promises import Promise
from herring.torch.tensors import TorchWireDType, dtype_name, wire_dtype_name


class _Bucket(NamedTuple):
    plan: PlannedReduction
    place: torch.Tensor  # the arena, in the bucket's dtype


class PlannedBuckets:
    """A state of `ddp_comm_hook` with which each bucket is a planned round.

        state = herring.torch.PlannedBuckets(wire_dtype="fp8")
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(state, herring.torch.ddp_comm_hook)

    Ranks agree on a bucket once, when it is seen for the first time. From then on nothing is
    announced in a step, and buckets may travel in fewer bits. torch makes new buckets after the
    first step, and those are agreed on, too. Each model needs a state of its own.

    Args:
      wire_dtype: What gradients travel in between nodes, as in
        `herring.torch.DistributedDataParallel`; None means their own dtype.
      error_feedback: Whether what rounding to 8 bits loses is added to the next gradients.
      group: The ranks that average; None means all ranks of the job.
      name: The prefix of the plans' names, the same on every rank; None numbers the states.

    Raises:
      InvalidArgumentError: A value is not allowed.
    """

    def __init__(
        self,
        wire_dtype: TorchWireDType | None = None,
        *,
        error_feedback: bool = True,
        group: Group | None = None,
        name: str | None = None,
    ) -> None:
        wire = wire_dtype_name(wire_dtype)
        self._wire = None if wire == "float32" else wire
        self._error_feedback = boolean_of(error_feedback, "error_feedback")
        if group is not None and not isinstance(group, Group):
            raise InvalidArgumentError(
                f"group is {shown(group)}; it must be a herring.Group, from herring.new_group(), "
                "or None"
            )
        self._group = group
        self._given_name = name
        self._name = ""
        self._job: Any = None  # in which the plans are
        self._plans = 0  # how many were made
        self._buckets: dict[int, _Bucket] = {}

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Averages a bucket in place; see `ddp_comm_hook`."""
        buffer = bucket.buffer()
        if buffer.is_cuda:
            raise InvalidArgumentError(
                f"bucket {bucket.index()} is on {buffer.device}, and PlannedBuckets takes host "
                "memory only; use herring.torch.DistributedDataParallel, or the state None"
            )
        plan, place = self._bucket(bucket.index(), buffer)
        promise = Promise()
        plan.begin()
        place.copy_(buffer)
        plan.ready(0)

        def finish() -> None:
            try:
                plan.wait()
            except Exception as error:  # whoever waits for the future raises it
                promise.settle_here(buffer, error)
                return
            buffer.copy_(place)
            promise.settle_here(buffer)

        call_apart(finish)
        return promise.future

    def _bucket(self, index: int, buffer: torch.Tensor) -> _Bucket:
        if self._job is None or not is_running(self._job):
            self._job, self._buckets = job(), {}
            self._name = named(self._given_name, "buckets", self._group)
        known = self._buckets.get(index)
        if known is not None:
            if known.place.numel() == buffer.numel() and known.place.dtype == buffer.dtype:
                return known
            known.plan.close()
        self._plans += 1
        plan = PlannedReduction(
            [(buffer.numel(), dtype_name(buffer.dtype))],
            name=f"{self._name}.{index}.{self._plans}",
            wire_dtype=self._wire,
            error_feedback=self._error_feedback,
            group=self._group,
        )
        place = torch.from_numpy(plan.arena(0)).view(buffer.dtype)
        self._buckets[index] = _Bucket(plan, place)
        return self._buckets[index]
