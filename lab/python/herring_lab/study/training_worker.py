"""A worker that trains as BERT-large would, but sleeps where that would compute.

    python -m herring_lab.study.training_worker --strategy herring --bytes 13e6 --compute 2

Its module holds the variables of `herring_lab.simulate.bert`, all scaled by one factor. The forward
pass sleeps through its part of a step; in the backward pass each gradient appears at its moment,
with real autograd, so that the hooks of whatever wraps the module run as in training. Moments are
points in time counted from the start of the step, not sleeps that add up: as on an accelerator,
what the host does meanwhile delays a gradient only if it takes longer than the gap. To wake up
costs a processor that many workers share more than the rest of a gradient does; therefore gradients
that are produced within a small part of a step (`bert.TOGETHER`) appear at the moment of the last.
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

__all__ = ["STRATEGIES", "BertLarge", "main"]


class _Clock:
    """Seconds of the step that has begun last."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.last = 0.0

    def sleep_until(self, moment: float) -> None:
        """Returns `moment` seconds after the start of the step, or at once if that has passed."""
        left = self.start + moment - time.monotonic()
        if left > 0:
            time.sleep(left)


class _Layer(torch.autograd.Function):
    """Passes its input on; backward, the gradient of its parameter appears at its moment."""

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
    """BERT-large, scaled; see the module's description.

    Args:
      nbytes: of all gradients (float32).
      compute_seconds: of a step: forward and backward pass of one worker.

    Attributes:
      clock: start of the step, and when its last gradient was produced.
    """

    def __init__(self, nbytes: float, compute_seconds: float) -> None:
        super().__init__()
        self.compute_seconds = compute_seconds
        self.clock = _Clock()
        self.parts = torch.nn.ParameterList(torch.zeros(n) for n in bert.scaled_elements(nbytes))
        # So that there is a graph. It is no parameter: 398 are averaged.
        self._input = torch.zeros((), requires_grad=True)
        # The chain runs backwards in the order of production, hence forwards in the reverse.
        self._chain = [(index, part * compute_seconds) for index, part in reversed(bert.schedule())]

    def forward(self, rank: int) -> torch.Tensor:
        """Returns the loss (without meaning) of a step; `rank` makes the gradients differ."""
        self.clock.start = time.monotonic()
        signal = self._input * 1
        value = torch.tensor(float(rank + 1))
        for index, moment in self._chain:
            signal = _Layer.apply(signal, self.parts[index], self.clock, moment, value)
        self.clock.sleep_until(self.compute_seconds * bert.FORWARD_PART)
        return signal

    def wrong(self, workers: int) -> int:
        """Returns how many elements of the gradients are not the average over so many workers."""
        expected = torch.tensor((workers + 1) / 2)
        return sum(
            part.numel()
            if part.grad is None
            else int((~torch.isclose(part.grad, expected, rtol=1e-5)).sum())
            for part in self.parts
        )


class Strategy(Protocol):
    """How gradients are averaged. `gather` and `close` are collective."""

    rank: int
    size: int

    def step(self) -> None:
        """One training step, to the end of averaging."""

    def gather(self, item: Any) -> list[Any]:
        """Returns the items of all ranks."""

    def close(self) -> None:
        """Leaves the job."""


class _Herring:
    """`herring.torch.DistributedDataParallel`: fusion buffers are sent when they are full.

    They are scaled as the model is.
    """

    def __init__(self, model: BertLarge) -> None:
        import herring.torch as herring

        herring.init()
        self._herring = herring
        self.rank, self.size = herring.rank(), herring.size()
        held = sum(part.numel() for part in model.parts) * 4
        # Left to itself the plan makes larger ones of so small a model: it spares overheads that
        # are as long here as in real training, while all else takes longer.
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
    """All gradients by one ring all-reduce after the backward pass, with nothing overlapped."""

    def __init__(self, model: BertLarge) -> None:
        import herring

        herring.init()
        self._herring = herring
        self.rank, self.size = herring.rank(), herring.size()
        self._model = model
        # Gradients are views of one array: nothing is copied before or after.
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
    """torch's DistributedDataParallel over Gloo: buckets are sent when they are full.

    Buckets are scaled as the model is, so that there are as many as in 16-bit training.
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


#: Values of ``--strategy``.
STRATEGIES: dict[str, type[Any]] = {"herring": _Herring, "ddp": _Ddp, "ring": _Ring}


@dataclasses.dataclass
class _Times:
    """Of one worker: when timed steps ended (the machine's clock), and seconds within each.

    ``ended`` begins with the end of the last untimed step.
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
    """Seconds of each step of the job: from when the last worker has ended one to the next.

    Workers share the machine's clock. The longest of the workers' own steps would count time twice:
    who begins early waits for the others, though nobody is the later for it.

    Args:
      ended: by worker, when each step ended, the one before the first included.
    """
    last = [max(moments) for moments in zip(*ended)]
    return [end - before for before, end in itertools.pairwise(last)]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains; rank 0 writes what was measured.

    Returns:
      The exit status: 0; 1 if a gradient came out wrong; 3 if Herring reported an error.
    """
    parser = argparse.ArgumentParser(prog="python -m herring_lab.study.training_worker")
    add = parser.add_argument
    add("--strategy", choices=STRATEGIES, required=True)
    add("--bytes", type=float, required=True, metavar="N", help="of all gradients")
    add("--compute", type=float, required=True, metavar="SECONDS", help="slept per step")
    add("--warmup", type=int, default=3, metavar="N", help="untimed steps, at least 1 (3)")
    add("--steps", type=int, default=7, metavar="N", help="timed ones (7)")
    add("--json", metavar="FILE", help="write the results there (at rank 0)")
    options = parser.parse_args(argv)
    if options.warmup < 1 or options.steps < 1:
        parser.error("--warmup and --steps are at least 1")
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
            # Of all workers, per step.
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
