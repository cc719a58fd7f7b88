"""Runs a worker that trains like BERT-large, but sleeps instead of computing.

    python -m herring_lab.study.training_worker --strategy herring --bytes 13e6 --compute 2

The torch module holds the variables of `herring_lab.simulate.bert`, all scaled by one factor. The
forward pass sleeps through its part of a step. In the backward pass each gradient appears at its
moment, with real autograd, so that hooks run as in training. Moments are points in time since the
start of the step, and not sleeps that add up. So, as on an accelerator, the host's other work
delays a gradient only if it takes longer than the gap.

On a processor that many workers share, a wake-up costs more than the rest of a gradient. Therefore
gradients that are produced within a small part of a step (`bert.TOGETHER`) appear together, at the
moment of the last.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from herring.errors import HerringError
from herring_lab.simulate import bert


class _Clock:
    """Measures seconds since the start of the current step."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.last = 0.0

    def sleep_until(self, moment: float) -> None:
        """Sleeps until `moment` seconds after the start of the step; returns at once if later."""
        left = self.start + moment - time.monotonic()
        if left > 0:
            time.sleep(left)


class _Layer(torch.autograd.Function):
    """Passes its input on; in the backward pass its parameter's gradient appears at its moment."""

    @staticmethod
    def forward(
        ctx: Any,
        signal: torch.Tensor,
        parameter: torch.Tensor,
        clock: _Clock,
        moment: float,
        value: torch.Tensor,
    ) -> torch.Tensor:
        ctx.what = (clock, moment, value.expand(parameter.shape))
        return signal.view_as(signal)

    @staticmethod
    def backward(ctx: Any, signal: torch.Tensor) -> tuple[Any, ...]:
        clock, moment, gradient = ctx.what
        clock.sleep_until(moment)
        clock.last = time.monotonic() - clock.start
        return signal, gradient, None, None, None


class BertLarge(torch.nn.Module):
    """BERT-large, scaled; see the description of this file.

    Args:
      nbytes: bytes of all gradients (float32).
      compute_seconds: seconds of the forward and backward pass of a step.

    Attributes:
      clock: the start of the step, and when its last gradient was produced.
    """

    def __init__(self, nbytes: float, compute_seconds: float) -> None:
        super().__init__()
        self.compute_seconds = compute_seconds
        self.clock = _Clock()
        self.parts = torch.nn.ParameterList(torch.zeros(n) for n in bert.scaled_elements(nbytes))
        # Needed for an autograd graph. It is not a parameter: only the 398 variables are averaged.
        self._input = torch.zeros((), requires_grad=True)
        # The backward pass follows the order of production, so the forward pass has its reverse.
        self._chain = [(index, part * compute_seconds) for index, part in reversed(bert.schedule())]

    def forward(self, rank: int) -> torch.Tensor:
        """Runs the forward pass of a step. The loss has no meaning; gradients depend on `rank`."""
        self.clock.start = time.monotonic()
        signal = self._input * 1
        value = torch.tensor(float(rank + 1))
        for index, moment in self._chain:
            signal = _Layer.apply(signal, self.parts[index], self.clock, moment, value)
        self.clock.sleep_until(self.compute_seconds * bert.FORWARD_PART)
        return signal

    def wrong(self, workers: int) -> int:
        """Returns how many elements of the gradients are not the average over `workers` workers."""
        expected = torch.tensor((workers + 1) / 2)
        return sum(
            part.numel()
            if part.grad is None
            else int((~torch.isclose(part.grad, expected, rtol=1e-5)).sum())
            for part in self.parts
        )


class Strategy(Protocol):
    """A way to average gradients. All ranks must call `gather` and `close`."""

    rank: int
    size: int

    def step(self) -> None:
        """Runs a training step to the end of averaging."""

    def gather(self, item: Any) -> list[Any]:
        """Returns the items of all ranks."""

    def close(self) -> None:
        """Leaves the job."""


class _Herring:
    """`herring.torch.DistributedDataParallel`, which sends fusion buffers when they are full.

    Fusion buffers are scaled like the model.
    """

    def __init__(self, model: BertLarge) -> None:
        import herring.torch as herring

        herring.init()
        self._herring = herring
        self.rank, self.size = herring.rank(), herring.size()
        held = sum(part.numel() for part in model.parts) * 4
        # By default the plan of so small a model has larger buffers. They would save overheads,
        # which are as long here as in real training, while everything else takes longer here.
        size = held // bert.FUSION_BUFFERS
        self._model = herring.DistributedDataParallel(model, buffer_bytes=size)

    def step(self) -> None:
        self._model.zero_grad()
        self._model(self.rank).backward()

    def gather(self, item: Any) -> list[Any]:
        return self._herring.allgather_object(item)

    def close(self) -> None:
        self._model.close()
        self._herring.shutdown()


class _Ring(_Herring):
    """Averages all gradients by one ring all-reduce after the backward pass, without overlap."""

    def __init__(self, model: BertLarge) -> None:
        import herring

        herring.init()
        self._herring = herring
        self.rank, self.size = herring.rank(), herring.size()
        self._model = model
        # Gradients are views of one array, so nothing is copied before or after.
        self._flat = herring.empty((sum(part.numel() for part in model.parts),))
        self._views = torch.from_numpy(self._flat).split([part.numel() for part in model.parts])

    def step(self) -> None:
        self._flat.fill(0)
        for part, view in zip(self._model.parts, self._views):
            part.grad = view
        self._model(self.rank).backward()
        if self.size > 1:
            self._herring.allreduce(self._flat, "average", name="step", algorithm="ring")

    def close(self) -> None:
        self._herring.shutdown()


class _Ddp:
    """torch's DistributedDataParallel over Gloo, which sends buckets when they are full.

    Buckets are scaled like the model, so there are as many as in 16-bit training.
    """

    def __init__(self, model: BertLarge) -> None:
        import torch.distributed as dist

        from herring_lab.competitors import torch_rendezvous

        rank, size, method = torch_rendezvous(os.environ)
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
        self._dist = dist
        self.rank, self.size = rank, size
        held = sum(part.numel() for part in model.parts) * 4
        self._model = torch.nn.parallel.DistributedDataParallel(
            model,
            bucket_cap_mb=held / bert.DDP_BUCKETS / (1 << 20),
            gradient_as_bucket_view=True,
        )

    def step(self) -> None:
        self._model.zero_grad()
        self._model(self.rank).backward()

    def gather(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.size
        self._dist.all_gather_object(items, item)
        return items

    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()


class _Horovod:
    """Horovod's DistributedOptimizer over Gloo, which averages in cycles what has been produced.

    The threshold of its fusion buffer, 128 MiB, is scaled like the model, so there are as many
    buffers as in 16-bit training. Its cycle, 1 ms, is scaled like the step, so a step has as many
    cycles as the paper's. Both are Horovod's defaults, and its variables change them.
    """

    def __init__(self, model: BertLarge) -> None:
        from herring_lab.competitors import start_horovod

        held = sum(part.numel() for part in model.parts) * 4
        threshold = int(held / bert.HOROVOD_BUFFERS)
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(threshold))
        cycle = max(1.0, model.compute_seconds / bert.STEP_SECONDS)
        os.environ.setdefault("HOROVOD_CYCLE_TIME", f"{cycle:.3g}")
        self._horovod, self._keep = start_horovod()
        self.rank, self.size = self._horovod.rank(), self._horovod.size()
        self._model = model
        self._optimizer = self._horovod.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            named_parameters=model.named_parameters(),
        )

    def step(self) -> None:
        self._optimizer.zero_grad()
        self._model(self.rank).backward()
        self._optimizer.synchronize()

    def gather(self, item: Any) -> list[Any]:
        return self._horovod.allgather_object(item)

    def close(self) -> None:
        self._horovod.barrier()
        self._horovod.shutdown()


#: Values of ``--strategy``.
STRATEGIES: dict[str, type[Any]] = {
    "herring": _Herring,
    "ddp": _Ddp,
    "ring": _Ring,
    "horovod": _Horovod,
}


@dataclasses.dataclass
class _Times:
    """The times of one worker.

    Attributes:
      ended: when steps ended, on the machine's clock; begins with the last untimed step.
      produced: for each timed step, the seconds until its last gradient was produced.
      processor: processor seconds of a step.
      wrong: the number of gradient elements that are not the average.
    """

    ended: list[float] = dataclasses.field(default_factory=list)
    produced: list[float] = dataclasses.field(default_factory=list)
    processor: float = 0.0
    wrong: int = 0


def _train(strategy: Strategy, model: BertLarge, warmup: int, steps: int) -> _Times:
    times = _Times()
    for number in range(1, warmup + steps + 1):
        strategy.step()
        if number == 1:
            times.wrong += model.wrong(strategy.size)
        if number >= warmup:
            times.ended.append(time.monotonic())
        if number > warmup:
            times.produced.append(model.clock.last)
        if number == warmup:
            processor = time.process_time()
    times.processor = (time.process_time() - processor) / steps
    times.wrong += model.wrong(strategy.size)
    return times


def _steps_of_all(ended: Sequence[Sequence[float]]) -> list[float]:
    """Returns the seconds of each step of the job.

    A step of the job lasts from the end of the previous step on the last worker to its end on the
    last worker. Workers share the machine's clock. The longest of the workers' own steps would
    count time twice: a worker that begins early waits for the others, but does not delay the job.

    Args:
      ended: for each worker, when steps ended, beginning with the last untimed step.
    """
    last = [max(moments) for moments in zip(*ended)]
    return [end - before for before, end in itertools.pairwise(last)]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, and writes the measurements on rank 0.

    Returns:
      The exit status: 0, or 1 if a gradient was wrong, or 3 if Herring reported an error.
    """
    parser = argparse.ArgumentParser(prog="python -m herring_lab.study.training_worker")
    add = parser.add_argument
    add("--strategy", choices=STRATEGIES, required=True)
    add("--bytes", type=float, required=True, metavar="N", help="bytes of all gradients")
    add("--compute", type=float, required=True, metavar="SECONDS", help="seconds of sleep per step")
    add("--warmup", type=int, default=3, metavar="N", help="untimed steps, at least 1 (default 3)")
    add("--steps", type=int, default=7, metavar="N", help="timed steps, at least 1 (default 7)")
    add("--json", metavar="FILE", help="file for the results of rank 0")
    options = parser.parse_args(argv)
    if options.warmup < 1 or options.steps < 1:
        parser.error("--warmup and --steps must be at least 1")
    torch.set_num_threads(1)
    try:
        model = BertLarge(options.bytes, options.compute)
        strategy = STRATEGIES[options.strategy](model)
        times = strategy.gather(_train(strategy, model, options.warmup, options.steps))
        strategy.close()
    except HerringError as error:
        print(f"training_worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 3
    wrong = sum(part.wrong for part in times)
    if strategy.rank == 0 and options.json:
        found = {
            "bytes": sum(part.numel() for part in model.parts) * 4,
            "step_seconds": _steps_of_all([part.ended for part in times]),
            "last_gradient_seconds": [max(row) for row in zip(*(part.produced for part in times))],
            # The sum over all workers, per step.
            "processor_seconds": sum(part.processor for part in times),
            "wrong": wrong,
        }
        pathlib.Path(options.json).write_text(json.dumps(found) + "\n")
    status = 1 if wrong else 0
    if options.strategy == "ddp":
        from herring_lab.competitors import end_process

        end_process(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
