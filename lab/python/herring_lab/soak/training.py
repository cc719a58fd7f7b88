"""The program of `herring soak` on each rank: a training whose every bit is known beforehand.

Each step averages the gradients of a model in several fusion buffers, and moves the parameters by
SGD with momentum. In some steps named all-reduces are in flight at the same time. Nothing is
random, so two jobs of one layout compute the same bits.

A rank writes one line for each step: its number, its end (`time.monotonic`) and a checksum of all
averages so far, and now and then a hash of the parameters. The line of a step thus shows whether
this step or any step before had a wrong bit.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from pathlib import Path
from time import monotonic

import numpy as np

import herring
from herring_lab.soak.records import DONE, PARAMETERS_EVERY, STOP, steps_file

_SHARES = (0.5, 0.2, 0.1, 0.05, 0.05)  # of the model's bytes that each matrix has
_BUFFERS = 8
_SMALL_EVERY = 3  # steps from one small all-reduce to the next
_LARGE_EVERY = 7
_BIAS = 13
_MOMENTUM = 0.9
_RATE = 0.02


def gradients(size: int) -> list[tuple[int, str]]:
    """Returns elements and dtype of each gradient of a model of `size` bytes.

    Matrices take turns with small biases, and one gradient has another dtype, hence another arena.
    """
    listed = []
    for share in _SHARES:
        listed += [(max(1, int(share * size) // 4), "float32"), (_BIAS, "float32")]
    return [*listed, (max(1, size // 80), "float64")]


class Model:
    """Parameters, momentum and the planned reduction of their gradients."""

    def __init__(self, size: int) -> None:
        """Makes a model of `size` bytes; all ranks call it."""
        listed = gradients(size)
        buffer = max(4096, size // _BUFFERS)
        self.plan = herring.PlannedReduction(
            listed, name="model", buffer_bytes=buffer, note_bytes=1
        )
        arenas = [self.plan.arena(index) for index in range(len(self.plan.arenas))]
        self._slots = []  # of each gradient: its place, its parameters, their momentum
        for (arena, at, count), (_, dtype) in zip(self.plan.placements, listed, strict=True):
            place = arenas[arena][at : at + count].view(dtype)
            self._slots.append((place, np.zeros_like(place), np.zeros_like(place)))
        largest = max(place.size for place, _, _ in self._slots)
        generator = np.random.Generator(np.random.PCG64(herring.rank()))
        self._data = generator.standard_normal(2 * largest, dtype=np.float32)
        self._scratch = np.empty(largest, np.float64)

    def begin(self, step: int, last: bool) -> None:
        """Starts a round, and gives the gradients to it one after another."""
        self.plan.begin()
        self.plan.note(bytes([last]))
        for index, (place, parameters, _) in enumerate(self._slots):
            at = (131 * step + 17 * index) % (self._data.size - place.size + 1)
            np.subtract(parameters, self._data[at : at + place.size], out=place)
            self.plan.ready(index)

    def finish(self, checksum: int) -> tuple[bool, int]:
        """Waits for the averages, and moves the parameters.

        Returns:
            Whether this was the last step, and the checksum that goes on with the averages.
        """
        self.plan.wait()
        for place, parameters, momentum in self._slots:
            checksum = zlib.crc32(place.data, checksum)
            momentum *= _MOMENTUM
            momentum += place
            moved = self._scratch.view(place.dtype)[: place.size]
            np.multiply(momentum, _RATE, out=moved)
            parameters -= moved
        return bool(self.plan.notes[0]), checksum

    def hashed(self) -> str:
        """Returns a hash of the parameters and the momentum."""
        digest = hashlib.blake2b(digest_size=16)
        for _, parameters, momentum in self._slots:
            digest.update(parameters.data)
            digest.update(momentum.data)
        return digest.hexdigest()


class Calls:
    """Named all-reduces of whole numbers, whose sums are known exactly."""

    def __init__(self, size: int) -> None:
        """Makes the arrays; the large one has a quarter of `size` bytes."""
        self._arrays: dict[str, tuple[int, np.ndarray]] = {
            "small": (_SMALL_EVERY, np.empty(16, np.int64)),
            "large": (_LARGE_EVERY, np.empty(max(1, size // 16), np.float32)),
        }
        self._ramps = {name: np.arange(a.size) % 1021 for name, (_, a) in self._arrays.items()}

    def start(self, step: int) -> list[tuple[str, np.ndarray, herring.Handle]]:
        """Starts the calls of a step."""
        started = []
        for name, (every, array) in self._arrays.items():
            if step % every == 0:
                array[:] = self._ramps[name] + (step % 1000 + herring.rank())
                handle = herring.allreduce_async(array, "sum", name=f"soak.{name}")
                started.append((name, array, handle))
        return started

    def finish(
        self, step: int, started: list[tuple[str, np.ndarray, herring.Handle]], checksum: int
    ) -> int:
        """Waits for the calls of a step and checks their sums; returns the checksum."""
        ranks = herring.size()
        for name, array, handle in started:
            handle.wait()
            expected = ranks * (self._ramps[name] + step % 1000) + ranks * (ranks - 1) // 2
            wrong = int(np.count_nonzero(array != expected))
            if wrong:
                raise SystemExit(
                    f"rank {herring.rank()}: step {step}: {wrong} of {array.size} elements of the "
                    f"{name} all-reduce are wrong"
                )
            checksum = zlib.crc32(array.data, checksum)
        return checksum


def main() -> int:
    """Trains for a number of steps (argument 3), or if that is 0 until a file says stop."""
    folder, size, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    herring.init()
    rank = herring.rank()
    model, calls = Model(size), Calls(size)
    checksum = 0
    step = 0
    last = False
    with steps_file(folder, rank).open("w", encoding="ascii") as out:
        print(os.getpid(), file=out, flush=True)
        while not last:
            end = step + 1 == steps if steps else rank == 0 and (folder / STOP).exists()
            started = calls.start(step) if step % 2 else []
            model.begin(step, end)
            if not step % 2:
                started = calls.start(step)
            last, checksum = model.finish(checksum)
            checksum = calls.finish(step, started, checksum)
            words = [str(step), f"{monotonic():.6f}", f"{checksum:08x}"]
            if last or step % PARAMETERS_EVERY == 0:
                words.append(model.hashed())
            print(*words, file=out, flush=True)
            step += 1
        print(DONE, file=out)
    herring.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
