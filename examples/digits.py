"""Trains a small network on handwritten digits, on several workers that average their gradients.

Three steps turn an ordinary training script into a distributed one; they are marked (1) to (3).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring.base.provenance import provenance

EPILOG = """\
examples:
  herring run -n 4 -- python examples/digits.py
      four workers on this machine, which is one node: gradients go through shared memory
  herring run -n 4 --nodes 2 --servers 2 -- python examples/digits.py
      the same workers as two emulated nodes with two servers: gradients go over TCP
  herring run -n 4 --nodes 2 --servers 2 -- python examples/digits.py --wire-dtype bfloat16
      the same with half the bytes
  torchrun --nproc-per-node 4 examples/digits.py
      the same script with another launcher

Each worker asks herring for its rank and the number of workers, takes its share of every batch, and
has a complete copy of the network. After each backward pass, the gradients are averages over all
workers, so all copies stay bit-identical. The script checks this at the end.
"""


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and does not reformat the examples."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on handwritten digits with several workers.",
        epilog=EPILOG,
        formatter_class=Formatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=40, help="passes over the training set")
    add(
        "--batch",
        type=int,
        default=32,
        help="samples per worker and step; the total batch is this times the number of workers",
    )
    add("--lr", type=float, default=5e-3, help="peak learning rate of AdamW; decays to 0")
    add("--seed", type=int, default=1, help="seed of the initial weights and the shuffling")
    add(
        "--wire-dtype",
        choices=["float32", "bfloat16", "float16", "fp8", "fp8_e5m2", "int8"],
        default="float32",
        help="dtype of gradients that are sent between nodes and servers; 16 bits halve the bytes, "
        "8 bits (with scales) quarter them, and sums are still computed in float32",
    )
    add("--no-progress", action="store_true", help="print only the result, no progress bar")
    add("--output", type=Path, default=Path("run/summary.json"), help="file for the figures")
    arguments = parser.parse_args()
    for name in ("epochs", "batch"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns images ([n, 1, 8, 8] float32 in 0..1) and labels ([n] int64) for training and test.

    Two thirds of the samples are for training.
    """
    from sklearn.datasets import load_digits  # Takes a second; only rank 0 needs the import.

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    # The split does not depend on --seed, so that runs can be compared.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    return images[train], labels[train], images[test], labels[test]


class Display:
    """Shows a progress bar on rank 0; without a terminal, prints a line for each tenth."""

    def __init__(self, total: int, shown: bool) -> None:
        self._console = Console(highlight=False)
        self._total = total
        self._shown = shown
        self._tenth = 0
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]:.4f}"),
            TextColumn("{task.fields[rate]:,.0f} samples/s"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("training", total=total, loss=float("nan"), rate=0.0)
        self._live = shown and self._console.is_terminal

    def __enter__(self) -> Display:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()

    def update(self, step: int, loss: float, rate: float) -> None:
        """Shows the state after `step` steps, at `rate` samples per second."""
        if self._live:
            self._bar.update(self._task, completed=step, loss=loss, rate=rate)
        elif self._shown and (tenth := 10 * step // self._total) > self._tenth:
            self._tenth = tenth
            self._console.print(
                f"step {step}/{self._total}  loss {loss:.4f}  {rate:,.0f} samples/s", soft_wrap=True
            )


def train(arguments: argparse.Namespace) -> tuple[nn.Module, dict[str, Any]]:
    rank, size = herring.rank(), herring.size()
    data = herring.broadcast_object(load_data() if rank == 0 else None)
    images, labels, test_images, test_labels = data

    torch.manual_seed(arguments.seed)
    # (2) Wrap the model. All ranks get rank 0's parameters; gradients become averages.
    model = herring.DistributedDataParallel(
        make_model(),
        wire_dtype=None if arguments.wire_dtype == "float32" else arguments.wire_dtype,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    per_step = arguments.batch * size
    per_epoch = len(labels) // per_step
    if per_epoch == 0:
        raise SystemExit(
            f"digits.py: {size} workers with {arguments.batch} samples each need {per_step} "
            f"samples for a step, and there are {len(labels)}; use a smaller --batch"
        )
    steps = arguments.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    shuffle = torch.Generator().manual_seed(arguments.seed)

    with Display(steps, shown=rank == 0 and not arguments.no_progress) as display:
        herring.barrier()  # Excludes the start-up of other ranks from the training time.
        start = time.perf_counter()
        step = 0
        for _ in range(arguments.epochs):
            order = torch.randperm(len(labels), generator=shuffle)  # The same on all ranks.
            for first in range(0, per_epoch * per_step, per_step):
                # (3) Take this rank's part of the batch.
                mine = order[first : first + per_step][rank::size]
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images[mine]), labels[mine])
                loss.backward()
                optimizer.step()
                schedule.step()
                step += 1
                rate = step * per_step / (time.perf_counter() - start)
                display.update(step, loss.item(), rate)
        herring.barrier()
        seconds = time.perf_counter() - start

    # Every rank tests its own part. The counts [right answers, loss] are summed over all ranks.
    with torch.no_grad():
        output = model(test_images[rank::size])
        answers = test_labels[rank::size]
        counts = torch.stack(
            [
                (output.argmax(1) == answers).sum().double(),
                F.cross_entropy(output, answers, reduction="sum").double(),
            ]
        )
    right, test_loss = (herring.allreduce(counts, "sum") / len(test_labels)).tolist()
    return model, {
        "test_accuracy": right,
        "test_loss": test_loss,
        "steps": steps,
        "samples_per_second": steps * per_step / seconds,
        "training_seconds": seconds,
    }


def parameters_identical(model: nn.Module) -> bool:
    """Returns whether all ranks have bit-identical parameters, by comparing hashes."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return len(set(herring.allgather_object(digest.hexdigest()))) == 1


def traffic(stats: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Returns the bytes that each worker and server sent and received, from all workers' counts."""
    servers = []
    for index, server in enumerate(stats[0]["servers"]):
        seen = [entry["servers"][index] for entry in stats]
        servers.append(
            {
                "name": server["name"],
                "bytes_sent": sum(entry["bytes_received"] for entry in seen),
                "bytes_received": sum(entry["bytes_sent"] for entry in seen),
            }
        )
    workers = [
        {"name": f"worker {rank}", **{key: entry[key] for key in ("bytes_sent", "bytes_received")}}
        for rank, entry in enumerate(stats)
    ]
    return {"workers": workers, "servers": servers}


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")


def show(summary: dict[str, Any], output: Path) -> None:
    console = Console(highlight=False)
    table = Table("", "sent", "received", title="bytes on the wire", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for who in (*summary["traffic"]["workers"], *summary["traffic"]["servers"]):
        sent, received = (f"{who[key] / 1e6:,.2f} MB" for key in ("bytes_sent", "bytes_received"))
        table.add_row(who["name"], sent, received)
    console.print(table)
    if summary["nodes"] == 1:
        console.print("one node: gradients went through shared memory, not over the wire")
    same = "all ranks hold bit-identical parameters"
    console.print(
        f"{plural(summary['workers'], 'worker')} on {plural(summary['nodes'], 'node')}, "
        f"{plural(summary['servers'], 'server')}: "
        f"{summary['steps']} steps in {summary['training_seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s",
        soft_wrap=True,
    )
    console.print(f"test accuracy {summary['test_accuracy']:.4f}")
    console.print(
        f"[green]checked: {same}[/]"
        if summary["parameters_identical"]
        else f"[bold red]NOT so: {same}[/]",
        soft_wrap=True,
    )
    console.print(f"figures in {output}", soft_wrap=True)


def main() -> None:
    start = time.perf_counter()
    arguments = parse_arguments()
    torch.set_num_threads(1)  # The workers share this machine's cores.
    herring.init()  # (1) Join the job.
    model, summary = train(arguments)
    summary["parameters_identical"] = parameters_identical(model)
    stats = herring.allgather_object(herring.stats())
    if herring.rank() == 0:
        summary |= {
            "workers": herring.size(),
            "nodes": herring.num_nodes(),
            "servers": len(stats[0]["servers"]),
            "epochs": arguments.epochs,
            "batch_per_worker": arguments.batch,
            "wire_dtype": arguments.wire_dtype,
            "seed": arguments.seed,
            "traffic": traffic(stats),
            "seconds": time.perf_counter() - start,
            "provenance": provenance(arguments),
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n")
        show(summary, arguments.output)
    herring.shutdown()
    if not summary["parameters_identical"]:
        raise SystemExit("digits.py: the ranks ended with different parameters")


if __name__ == "__main__":
    main()
