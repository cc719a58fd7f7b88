"""Trains networks with eager SGD: with severe imbalance on images, and inherent imbalance on text.

The paper is that on partial collectives and eager SGD, sections 6.2.3 and 6.3. Eight workers run on
this machine. Steps compute real gradients and then sleep for the time that a GPU would take, so
that waiting can be saved with any number of cores. Modes are compared at equal numbers of
contributions; the gradient of a late worker counts when it is in a result.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import pathlib
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from herring.errors import ConfigurationError
from herring_lab.competitors import MissingLibraryError, missing
from herring_lab.report import Chart, Table
from herring_lab.study.jobs import run_workers, sleep_until, start_together

_WORKERS = 8
_CLASSES = ("computers", "definitions", "people", "songs-poems", "zippy")
_LONGEST = 160  # words of a text; the rest is cut
_POINTS = 8  # number of points of a curve


def networks_study(quick: bool, report: Callable[[int, int, str], None]) -> list[Table]:
    """Trains every task in every mode with several seeds.

    Args:
      quick: whether to only test the setup, with one seed and few steps.
      report: called before each training, with (done, all, what).

    Raises:
      MissingLibraryError: torch is missing.
      ConfigurationError: a data set is missing; the error names the package.
    """
    if reason := missing("gloo"):  # Gloo is missing if torch is
        raise MissingLibraryError(f"networks needs torch: {reason}")
    for how in TASKS.values():
        if not how.folder.is_dir():
            raise ConfigurationError(
                f"networks needs Debian's package {how.package} ({how.folder} does not exist)"
            )
    seeds = [1] if quick else [1, 2, 3, 4]
    modes = ("full", "majority") if quick else ("full", "majority", "solo")
    runs = list(itertools.product(TASKS, seeds, modes))
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number, (task, seed, mode) in enumerate(runs):
        report(number, len(runs), f"{task}, {mode}, seed {seed}")
        steps, scale = (6, 0.1) if quick else (TASKS[task].steps, 1.0)
        (row,) = run_workers(
            "herring_lab.study.networks:train",
            _WORKERS,
            task=task,
            mode=mode,
            seed=seed,
            steps=steps,
            scale=scale,
            folder=str(TASKS[task].folder),
        )
        rows.setdefault((task, mode), []).append(row)
    tables = []
    for task, how in TASKS.items():
        of_task = {mode: rows[task, mode] for mode in modes}
        tables += _tables(task, how.title, of_task)
    return tables


def _tables(task: str, title: str, runs: dict[str, list[dict[str, Any]]]) -> list[Table]:
    def mean(mode: str, key: str) -> float:
        return statistics.fmean(run[key] for run in runs[mode])

    full = mean("full", "seconds")
    rows = []
    for mode in runs:
        accuracies = [100 * run["accuracy"] for run in runs[mode]]
        rows.append(
            {
                "mode": mode,
                "seconds": mean(mode, "seconds"),
                "speedup": full / mean(mode, "seconds"),
                "accuracy_percent": statistics.fmean(accuracies),
                "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
                "rounds": mean(mode, "rounds"),
            }
        )
    curves = [
        {
            "mode": mode,
            "seconds": statistics.fmean(run["curve"][point][0] for run in runs[mode]),
            "accuracy": statistics.fmean(run["curve"][point][1] for run in runs[mode]),
        }
        for mode in runs
        for point in range(min(len(run["curve"]) for run in runs[mode]))
    ]
    notes = [
        "means over seeds, and the standard deviation of the accuracy",
        "the results of every mode have equally many contributions; workers sleep for a GPU's time",
    ]
    return [
        Table(f"networks-{task}", title, rows, None, notes),
        Table(
            f"networks-{task}-curve",
            f"{title}: accuracy over time",
            curves,
            Chart("seconds", ["accuracy"], "time (s)", "accuracy (share of test data)", by="mode"),
            ["accuracy on test data, with the parameters that rank 0 had at that time"],
        ),
    ]


# -- what each worker runs ------------------------------------------------------------------------


def images(folder: pathlib.Path, scale: float) -> Any:
    """Makes the task of section 6.2.3, in which workers are 50 to 400 ms late, in turn."""
    import torch
    from torch import nn

    def read(name: str, header: int) -> np.ndarray:
        with gzip.open(folder / f"{name}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = read(f"{part}-images-idx3", 16).reshape(-1, 1, 28, 28)
        labels = read(f"{part}-labels-idx1", 8)
        return torch.tensor(pixels, dtype=torch.float32) / 255, torch.tensor(labels).long()

    train_images, train_labels = load("train")
    test = load("t10k")
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    # Late gradients act like momentum, so the momentum is smaller than usual.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)

    def batches(rank: int, size: int, seed: int) -> Iterator[tuple[Any, Any, float]]:
        random = np.random.default_rng([seed, rank])
        mine = np.arange(rank, len(train_labels), size)
        for step in itertools.count():
            chosen = random.choice(mine, 64, replace=False)
            late = 0.05 * ((rank + step) % size + 1)
            yield train_images[chosen], train_labels[chosen], scale * late

    return model, optimizer, batches, test


def texts(folder: pathlib.Path, scale: float) -> Any:
    """Makes the task of section 6.3: a step's time is in proportion to its sequences' length."""
    import torch
    from torch import nn

    sequences, labels = [], []
    for label, name in enumerate(_CLASSES):
        for text in (folder / name).read_text(errors="replace").split("\n%\n"):
            if words := re.findall(r"[A-Z]?[a-z']+|[A-Z]+|\d+|[^\w\s]", text)[:_LONGEST]:
                sequences.append(words)
                labels.append(label)
    order = np.random.default_rng(0).permutation(len(sequences))
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    common = Counter(word for i in kept for word in set(sequences[i])).most_common(3000)
    number = {word: i + 2 for i, (word, _) in enumerate(common)}
    coded = [[number.get(word, 1) for word in words] for words in sequences]
    targets = torch.tensor(labels)

    def padded(chosen: Any) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(len(coded[i]) for i in chosen)
        return (
            torch.tensor([coded[i] + [0] * (longest - len(coded[i])) for i in chosen]),
            targets[torch.tensor(np.asarray(chosen))],
        )

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3002, 32, padding_idx=0)
            self.lstm = nn.LSTM(32, 32, batch_first=True)
            self.out = nn.Linear(32, len(_CLASSES))

        def forward(self, tokens: Any) -> Any:
            states, _ = self.lstm(self.embedding(tokens))
            there = (tokens != 0).unsqueeze(-1)
            return self.out((states * there).sum(1) / there.sum(1))

    # Figure 2: 201 to 3,410 ms on a GPU, 1,235 ms on average. Here a tenth of the average.
    by_length = sorted(kept, key=lambda i: len(coded[i]))
    groups = [by_length[i : i + 16] for i in range(0, len(by_length) - 15, 16)]
    per_word = 0.1235 / statistics.fmean(len(coded[group[-1]]) for group in groups)

    def batches(rank: int, size: int, seed: int) -> Iterator[tuple[Any, Any, float]]:
        random = np.random.default_rng([seed, rank])
        while True:
            for g in random.permutation(np.arange(rank, len(groups), size)):
                inputs, wanted = padded(groups[g])
                yield inputs, wanted, scale * per_word * inputs.shape[1]

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    return model, optimizer, batches, padded(sorted(held, key=lambda i: len(coded[i])))


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, its data, and how long its steps take.

    Attributes:
      title: the title for people.
      make: a function of (folder, scale) that returns the model, the optimizer with the highest
        learning rate, a function batches(rank, size, seed), and the test data. `batches` yields
        inputs, labels and the seconds of a step.
      package: Debian's package with the data.
      folder: the folder of the data.
      steps: the steps of each worker under full synchrony.
    """

    title: str
    make: Callable[[pathlib.Path, float], Any]
    package: str
    folder: pathlib.Path
    steps: int


TASKS = {
    "images": Task(
        "Severe imbalance: convolutions on Fashion-MNIST, 8 workers",
        images,
        "dataset-fashion-mnist",
        pathlib.Path("/usr/share/datasets/fashion-mnist"),
        400,
    ),
    "texts": Task(
        "Inherent imbalance: LSTM on fortunes, 8 workers",
        texts,
        "fortunes",
        pathlib.Path("/usr/share/games/fortunes"),
        300,
    ),
}


def train(
    task: str, mode: str, seed: int, steps: int, scale: float, folder: str
) -> list[dict[str, Any]]:
    """Trains until results hold `steps` contributions of each worker, on average."""
    import torch
    from torch.nn import functional

    import herring.torch as herring

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rank, size = herring.rank(), herring.size()
    model, optimizer, batches, (test, wanted) = TASKS[task].make(pathlib.Path(folder), scale)
    rate = optimizer.param_groups[0]["lr"]
    ddp = herring.DistributedDataParallel(model, sync=mode)
    goal = steps * size
    counted = [0] * size  # contributions in results by rank; after a round, equal on all ranks
    rounds = 0
    curve: list[tuple[float, Any]] = []

    def apply(info: Any) -> bool:
        nonlocal rounds
        # The learning rate follows the contributions in results, which are the same on every rank.
        # It rises over the first tenth, then falls to nothing.
        share = min(sum(counted) / goal, 1.0)
        optimizer.param_groups[0]["lr"] = rate * min(10 * share + 0.01, 1 - share)
        optimizer.step()
        rounds += 1
        if info is None:
            counted[:] = [rounds] * size
        else:
            for one in info.contributors:
                counted[one.rank] = one.upto
        if rank == 0 and len(curve) < _POINTS * sum(counted) // goal:
            state = {key: value.clone() for key, value in model.state_dict().items()}
            curve.append((time.monotonic() - start, state))
        return sum(counted) >= goal

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(test).argmax(1) == wanted).float().mean())

    start = start_together(0.5)
    sleep_until(start)
    done = False
    for inputs, labels, seconds in batches(rank, size, seed):
        begun = time.monotonic()
        optimizer.zero_grad()
        loss = functional.cross_entropy(ddp(inputs), labels)
        sleep_until(begun + seconds)
        loss.backward()
        for info in ddp.rounds():
            done = apply(info) or done
        if done:
            break
    took = time.monotonic() - start
    for _ in ddp.flush():
        optimizer.step()
    accuracy_at_end, points = accuracy(), []
    for moment, state in curve:
        model.load_state_dict(state)
        points.append((moment, accuracy()))
    return [{"seconds": took, "accuracy": accuracy_at_end, "curve": points, "rounds": rounds}]
