"""Trains in steps like a real program, with faults: runs on every rank of a case.

OBSERVED_CASE is JSON: how steps reduce ("planned", "calls", "ddp", "groups" or "partial"), how long
they compute, and the faults. When a fault begins on this rank, its time is written to a file in the
folder of the case, and when it ends, another file is made there.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pickle
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import herring
import herring.planned

CASE: dict[str, Any] = json.loads(os.environ["OBSERVED_CASE"])
FOLDER = Path(CASE["folder"])


def fifo(name: str, rank: int) -> str:
    return str(FOLDER / f"{name}-{rank}")


class Fault:
    """What slows this rank down, in the steps first, first + every, ... below `last`."""

    def __init__(self, what: str, seconds: float = 0.05, first: int = 12, **others: Any) -> None:
        self.what, self.seconds, self.first = what, seconds, first
        self.every = others.get("every", 1)
        self.last = others.get("last", 1 << 30)
        self.early = others.get("early", False)  # at the beginning of a step
        self.begun = False
        self.file: Any = None

    def prepare(self) -> None:
        rank = herring.rank()
        if self.what in ("input", "loader"):
            self.file = open(fifo("input", rank), "rb")  # noqa: SIM115
        if self.what == "loader":
            self.file = iter(loader(self.file))
        if self.what in ("pages", "memmap"):
            path = FOLDER / f"pages-{rank}"
            path.write_bytes(os.urandom(1 << 20) * 64)
            self.file = open(path, "rb")  # noqa: SIM115
            os.fsync(self.file.fileno())

    def strike(self, step: int) -> None:
        if self.what in ("input", "loader"):
            # Data is read in each step; who provides it becomes slow at some time.
            if step == self.first:
                self._tell(step)
            if self.what == "loader":
                next(self.file)
            else:
                pickle.load(self.file)
            return
        if self.begun and step == self.last:
            (FOLDER / f"ended-{herring.rank()}").touch()
        if not self.first <= step < self.last or (step - self.first) % self.every != 0:
            return
        self._tell(step)
        getattr(self, f"_{self.what}")()

    def _tell(self, step: int) -> None:
        if self.begun:
            return
        self.begun = True
        place = FOLDER / f"began-{herring.rank()}"
        place.with_suffix(".new").write_text(f"{time.time()} {step}")
        place.with_suffix(".new").rename(place)

    def _sleep(self) -> None:
        time.sleep(self.seconds)

    def _busy(self) -> None:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass

    def _checkpoint(self) -> None:
        # The "disk" takes only so many bytes per second.
        with open(fifo("disk", herring.rank()), "wb", buffering=0) as disk:
            pickle.dump(np.zeros(int(min(self.seconds, 2) * CASE["disk"]), np.uint8), disk)

    def _save(self) -> None:
        import torch

        with open(fifo("disk", herring.rank()), "wb") as disk:
            torch.save({"w": torch.zeros(int(min(self.seconds, 2) * CASE["disk"] / 4))}, disk)

    def _pages(self) -> None:
        view = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)
        view.madvise(mmap.MADV_RANDOM)
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        end = time.monotonic() + self.seconds
        total = 0
        for place in range(0, len(view), mmap.PAGESIZE):
            total += view[place]
            if time.monotonic() > end:
                break
        view.close()

    def _memmap(self) -> None:
        # Pages leave the page cache only while nobody maps them.
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        items = np.memmap(self.file, np.uint8, "r")
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            place = random.randrange(len(items) - 4096)
            items[place : place + 4096].sum()

    def _gil(self) -> None:
        # An extension that keeps the interpreter to itself.
        if self.file is None:
            keep = ctypes.PyDLL(None).usleep

            def work() -> None:
                while True:
                    keep(int(self.seconds * 1e6))
                    time.sleep(0.002)

            self.file = threading.Thread(target=work, daemon=True)
            self.file.start()

    def _evaluate(self) -> None:
        evaluate(self.seconds)

    def _hang(self) -> None:
        while True:
            time.sleep(1)

    def _exception(self) -> None:
        raise RuntimeError("a mistake of this rank's program")

    def _order(self) -> None:
        for name in ("second", "first"):
            herring.allreduce(np.ones(1000, np.float32), name=name)

    def _shape(self) -> None:
        herring.allreduce(np.ones(999, np.float32), name="gradient")

    def _other(self) -> None:
        herring.broadcast(np.ones(1000, np.float32), root=0, name="gradient")

    def _skip(self) -> None:
        herring.allreduce(np.ones(1000, np.float32), name="extra")


def evaluate(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        np.linalg.norm(np.ones((100, 100)))
        time.sleep(0.01)


def loader(source: Any) -> Any:
    """Returns a torch.utils.data.DataLoader that reads its items from a pipe."""
    from torch.utils.data import DataLoader, IterableDataset

    class Items(IterableDataset):
        def __iter__(self) -> Any:
            while True:
                yield pickle.load(source)

    return DataLoader(Items(), batch_size=None)


def say_ready() -> None:
    (FOLDER / f"ready-{herring.rank()}").write_text(str(os.getpid()))


def compute(faults: list[Fault], step: int) -> None:
    if step == CASE.get("ready", 5):
        say_ready()
    jitter = CASE.get("jitter", 0.0)
    for fault in faults:
        if fault.early:
            fault.strike(step)
    time.sleep(CASE["compute"] * (1 + random.uniform(-jitter, jitter)))
    for fault in faults:
        if not fault.early:
            fault.strike(step)


def planned(faults: list[Fault], group: Any = None) -> None:
    elements = CASE["bytes"] // 4
    plan = herring.planned.PlannedReduction([(elements, "float32")] * 2, name="model", group=group)
    for step in range(CASE["steps"]):
        plan.begin()
        compute(faults, step)
        plan.ready_all([1, 0])
        plan.wait()


def groups(faults: list[Fault]) -> None:
    made = [herring.new_group(ranks) for ranks in CASE["groups"]]
    planned(faults, next(group for group in made if group.rank is not None))


def partial(faults: list[Fault]) -> None:
    array = np.ones(CASE["bytes"] // 4, np.float32)
    reduction = herring.PartialReduction(array.size, "float32", sync="majority", name="gradient")
    for step in range(CASE["steps"]):
        compute(faults, step)
        # A rank that takes one result in each step would hold the others up.
        for _ in reduction.step(array, np.empty_like(array)):
            pass


def calls(faults: list[Fault]) -> None:
    array = np.ones(CASE["bytes"] // 4, np.float32)
    algorithm = {"algorithm": CASE["algorithm"]} if CASE.get("algorithm") else {}
    for step in range(CASE["steps"]):
        compute(faults, step)
        if CASE.get("orders"):
            for name in ("first", "second"):
                herring.allreduce(np.ones(1000, np.float32), name=name)
        herring.allreduce(array, name="gradient", **algorithm)


def ddp(faults: list[Fault]) -> None:
    import torch

    import herring.torch

    torch.set_num_threads(1)
    model = herring.torch.DistributedDataParallel(torch.nn.Linear(CASE["bytes"] // 256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(4, CASE["bytes"] // 256)
    for step in range(CASE["steps"]):
        compute(faults, step)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def main() -> None:
    herring.init()
    faults = [
        Fault(**{key: value for key, value in fault.items() if key != "ranks"})
        for fault in CASE["faults"]
        if herring.rank() in fault["ranks"]
    ]
    for fault in faults:
        fault.prepare()
    try:
        kinds = (planned, calls, ddp, groups, partial)
        next(kind for kind in kinds if kind.__name__ == CASE["kind"])(faults)
    except herring.HerringError as error:
        print(f"rank {herring.rank()} failed: {error}", file=sys.stderr, flush=True)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
