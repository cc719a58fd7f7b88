"""The program of `herring soak --workers`: sums of whole numbers, which are known exactly.

The result of each step depends on which workers took part. A process writes one line for each step:
its number, its end (`time.monotonic`), the generation, the slots of its workers, and the total of
all results since the first step. A step that was lost or counted twice changes every later total.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic

import numpy as np

import herring
import herring.elastic
from herring.base import proc
from herring_lab.soak.records import DONE, STOP, worker_file

_PERIOD = 1021
_STEPS = 1000


def total_of(step: int, slots: list[int], elements: int) -> int:
    """Returns the total of a step's result: of `elements` numbers, summed over the workers."""
    whole, rest = divmod(elements, _PERIOD)
    ramp = whole * _PERIOD * (_PERIOD - 1) // 2 + rest * (rest - 1) // 2
    return len(slots) * (ramp + elements * (step % _STEPS)) + elements * sum(slots)


def main() -> int:
    """Trains until a file says stop."""
    folder, elements = Path(sys.argv[1]), max(1, int(sys.argv[2]) // 8)
    slot = int(os.environ["HERRING_RANK"])
    ramp = (np.arange(elements) % _PERIOD).astype(np.float64)
    state = herring.elastic.State(step=0, total=0, last=False)

    @herring.elastic.run
    def train(state: herring.elastic.State) -> None:
        slots = herring.allgather_object(slot)
        plan = herring.PlannedReduction(
            [(elements, "float64")], name="model", op="sum", note_bytes=1
        )
        (arena, at, nbytes) = plan.placements[0]
        place = plan.arena(arena)[at : at + nbytes].view(np.float64)
        generation, shown = herring.elastic.generation(), ",".join(map(str, slots))
        while not state.last:
            plan.begin()
            plan.note(bytes([herring.rank() == 0 and (folder / STOP).exists()]))
            np.add(ramp, state.step % _STEPS + slot, out=place)
            plan.ready(0)
            plan.wait()
            expected = len(slots) * (ramp + state.step % _STEPS) + sum(slots)
            if wrong := int(np.count_nonzero(place != expected)):
                raise SystemExit(f"step {state.step}: {wrong} of {elements} elements are wrong")
            state.total += int(place.sum())
            state.last = bool(plan.notes[0])
            print(state.step, f"{monotonic():.6f}", generation, shown, state.total, file=out)
            out.flush()
            state.step += 1
            state.commit()

    with worker_file(folder, slot, proc.identity(os.getpid())).open("w", encoding="ascii") as out:
        train(state)
        print(DONE, file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
