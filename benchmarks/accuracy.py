"""Trains small models in each wire dtype, with and without error feedback, and with few meetings.

  herring run -n 4 --nodes 4 -- python benchmarks/accuracy.py
  herring run -n 4 --nodes 4 -- python benchmarks/accuracy.py --seeds 8 --steps 400
  herring run -n 4 --nodes 4 -- python benchmarks/accuracy.py --task diloco --only 200

The task "digits" is that of examples/digits.py. "text" and "diloco" are that of examples/diloco.py:
"text" averages gradients in each step, and "diloco" compares that with few meetings. All variants
of a task see equally much data. Rank 0 prints a table: the mean over the seeds, and the smallest
and largest value. docs/how-to/eight-bits.md and docs/how-to/diloco.md show them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import digits
import diloco


class Variant(NamedTuple):
    """A way to train.

    Attributes:
      wire: The wire dtype.
      feedback: Whether error feedback is on.
      meets: The options of `herring.torch.DiLoCo`; None averages the gradients of each step.
        "outer" has the learning rate and the momentum of the outer optimizer.
    """

    wire: str
    feedback: bool = True
    meets: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """What the table says of it."""
        options = ", ".join(f"{name} {value}" for name, value in (self.meets or {}).items())
        return f"{self.wire}, DiLoCo, {options}" if self.meets else self.wire


WIRES = [
    Variant("float32"),
    Variant("bfloat16"),
    *[Variant(wire, on) for wire in ("fp8", "fp8_e5m2", "int8") for on in (True, False)],
]
TEXT_WIRES = [
    *[one for one in WIRES if one.wire != "fp8_e5m2"],
    *[Variant(wire, on) for wire in ("topk:0.01", "topk:0.1") for on in (True, False)],
]
SELDOM = [
    Variant("float32"),
    Variant("float32", meets={"every": 50}),
    Variant("float32", meets={"every": 200}),
    Variant("float32", meets={"every": 200, "outer": (0.9, 0.5)}),
    Variant("fp8", meets={"every": 50}),
]


def stepped(
    variant: Variant,
    model: torch.nn.Module,
    rate: float,
    steps: int,
    loss_of: Callable[[int, torch.nn.Module], torch.Tensor],
) -> None:
    """Trains a model: `loss_of` returns the loss of this rank's part of a step's batch."""
    wrapped: Any = model
    if variant.meets is None:
        wrapped = herring.DistributedDataParallel(
            model, wire_dtype=variant.wire, error_feedback=variant.feedback
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    block: Any = contextlib.nullcontext()
    if variant.meets is not None:
        lr, momentum = variant.meets.get("outer", (0.7, 0.9))
        block = herring.DiLoCo(
            model,
            optimizer,
            lambda copies: torch.optim.SGD(copies, lr=lr, momentum=momentum, nesterov=True),
            every=variant.meets["every"],
            wire_dtype=variant.wire,
            error_feedback=variant.feedback,
        )
    with block:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(step, wrapped).backward()
            optimizer.step()
            schedule.step()
    if variant.meets is None:
        wrapped.close()


class Digits:
    """The digits of examples/digits.py, in batches of 32 for each worker."""

    batch, rate, steps = 32, 5e-3, 360
    variants = WIRES
    head = "| wire dtype | error feedback | training loss | test accuracy, % |"

    def __init__(self) -> None:
        self._data = herring.broadcast_object(digits.load_data() if herring.rank() == 0 else None)

    def trained(self, variant: Variant, seed: int, steps: int) -> tuple[float, float]:
        """Returns the loss on the training set and the accuracy on the test set."""
        images, labels, test_images, test_labels = self._data
        torch.manual_seed(seed)
        model = digits.make_model()
        draw = torch.Generator().manual_seed(seed)
        each = self.batch * herring.size()
        in_epoch = len(labels) // each
        orders = [torch.randperm(len(labels), generator=draw) for _ in range(-(-steps // in_epoch))]

        def loss_of(step: int, wrapped: torch.nn.Module) -> torch.Tensor:
            first = step % in_epoch * each
            mine = orders[step // in_epoch][first : first + each][herring.rank() :: herring.size()]
            return F.cross_entropy(wrapped(images[mine]), labels[mine])

        stepped(variant, model, self.rate, steps, loss_of)
        with torch.no_grad():
            loss = F.cross_entropy(model(images), labels).item()
            right = (model(test_images).argmax(1) == test_labels).float().mean().item()
        return loss, 100 * right

    def row(self, found: list[tuple[float, float]]) -> str:
        """Returns the last columns of the table."""
        losses, rights = zip(*found)
        return f"{spread(losses, 4)} | {spread(rights, 2)}"


class Text:
    """The text of examples/diloco.py, in batches of 4 windows for each worker."""

    batch, rate, steps = 4, 3e-3, 500
    variants = TEXT_WIRES
    head = "| wire dtype | error feedback | test loss |"

    def __init__(self) -> None:
        self._text, self._test, self._characters = diloco.load_text()

    def trained(self, variant: Variant, seed: int, steps: int) -> tuple[float]:
        """Returns the loss on the test set."""
        torch.manual_seed(seed)
        model = diloco.Model(self._characters)
        draw = torch.Generator().manual_seed(1000 * seed + herring.rank())
        last = len(self._text) - diloco.WINDOW

        def loss_of(_: int, wrapped: torch.nn.Module) -> torch.Tensor:
            starts = torch.randint(last, (self.batch,), generator=draw)
            return diloco.loss_of(wrapped, diloco.windows(self._text, starts))

        stepped(variant, model, self.rate, steps, loss_of)
        return (diloco.test_loss(model, self._test),)

    def row(self, found: list[tuple[float]]) -> str:
        """Returns the last columns of the table."""
        return spread([loss for (loss,) in found], 3)


class Seldom(Text):
    """The same text in more steps, with few meetings."""

    steps = 2000
    variants = SELDOM


def spread(values: Any, digits: int) -> str:
    """Returns the mean of some values and their range."""
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


TASKS = {"digits": Digits, "text": Text, "diloco": Seldom}


def main() -> None:
    """Trains every variant with every seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", choices=TASKS, default="digits", help="default: digits")
    add("--seeds", type=int, default=4, help="number of seeds (default: 4)")
    add("--steps", type=int, help="steps of each worker (default: 360, 500 and 2000)")
    add("--only", nargs="*", default=[""], metavar="WORDS", help="variants with one of these words")
    options = parser.parse_args()
    herring.init()
    torch.set_num_threads(1)
    first = herring.rank() == 0
    task: Any = TASKS[options.task]()
    if first:
        print(task.head)
        print("|---" * (task.head.count("|") - 1) + "|", flush=True)
    for variant in task.variants:
        if not any(words in variant.name for words in options.only):
            continue
        steps = options.steps or task.steps
        found = [task.trained(variant, seed, steps) for seed in range(options.seeds)]
        told = "yes" if variant.feedback else "no"
        told = told if variant.wire.startswith(("fp8", "int8", "topk")) else ""
        if first:
            print(f"| {variant.name} | {told} | {task.row(found)} |", flush=True)
    herring.shutdown()


if __name__ == "__main__":
    main()
