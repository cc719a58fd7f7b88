"""Measures what negotiation costs in a step: the counterpart of figure 7 of the Herring paper.

The same gradients are averaged in three ways, in turns in the same job:

- as a plan, whose fusion buffers every worker pushes as soon as they are full;
- with a named operation for each of these fusion buffers, which all workers announce in every step
  and push when the answer has come, as torch's own DistributedDataParallel does over Herring;
- with a named operation for each gradient.

Workers sleep instead of computing. Gradients appear at the moments of the model's backward pass.
"""

from __future__ import annotations

import dataclasses
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.errors import ConfigurationError
from herring_lab.emulate.cluster import ClusterError, LateLinksError
from herring_lab.report import Chart, Table
from herring_lab.simulate import bert, catalogue
from herring_lab.study.bench import Network
from herring_lab.study.cases import counted, on_time, show_delay
from herring_lab.study.experiments import Scale
from herring_lab.study.jobs import run_in_lab, sleep_until, start_together

#: The numbers of workers, unless others are given.
HOSTS = (2, 4, 8)
#: One-way delays between any two hosts, in seconds.
DELAYS = (50e-6, 1e-3, 5e-3)
#: Names in `herring_lab.simulate.catalogue`.
MODELS = ("resnet-50", "bert-base")
_SMALL_BYTES = 65536  # default of HERRING_SMALL_BYTES
_WARMUP = 4  # untimed steps; messages are counted in all of them but the first
_MARGIN = 0.05
_PLANNED = "planned"
_NAMED = {"buffers": "fusion buffers, announced", "gradients": "gradients, announced"}
_Run = dict[str, dict[str, Any]]  # what a job found about each way of averaging


def negotiation(scale: Scale, size: int, compute: float) -> list[Table]:
    """Times steps whose gradients are planned or announced, over delays and numbers of workers.

    Args:
      scale: the options of the experiment.
      size: bytes of all gradients of each model.
      compute: seconds of the backward pass in which gradients appear; 0: they all do at once.

    Returns:
      A table of times for each model, and one of messages if any run gave a figure.

    Raises:
      ConfigurationError: `size` is too small for the gradients of a model.
      ClusterError: this machine cannot make a lab, a job failed, or an average was wrong.
    """
    models = MODELS[:1] if scale.quick else MODELS
    delays = DELAYS[1:2] if scale.quick else DELAYS
    hosts = sorted(set(scale.hosts))[: 1 if scale.quick else None]
    for model in models:
        scaled(model, size)  # raises if `size` is too small
    begin = counted(scale.report, len(models) * len(hosts) * len(delays) * scale.runs)
    tables: list[Table] = []
    messages: list[dict[str, Any]] = []
    for model in models:
        rows, void = [], []
        for workers in hosts:
            found: list[_Run] = []
            for delay in delays:
                network = dataclasses.replace(scale.network, delay=delay, strict=True)
                runs: list[_Run] = []
                for _ in range(scale.runs):
                    what = f"{model}, {workers} workers, {show_delay(delay)} one way"
                    begin(what)
                    try:
                        runs.append(_run(network, model, workers, size, compute, scale.iterations))
                    except LateLinksError as error:
                        void.append(f"void: {what}: {error.report.text()}")
                rows.append(_row(workers, delay, runs))
                found += runs
            messages += _messages(model, workers, size, found)
        tables.append(_times(scale, model, size, compute, rows, void))
    notes = [
        "announcements: named operations that the library counted in a step, of one worker and of "
        "all; the owner of a name answers each of them",
        "beside gradients: bytes that a worker sent and received in a step, without those of "
        "gradients and averages",
    ]
    title = f"Messages of a step, {size / 1e6:.4g} MB of gradients"
    if messages:
        tables.append(Table("negotiation-messages", title, messages, notes=notes))
    return tables


def _run(
    network: Network, model: str, workers: int, size: int, compute: float, iterations: int
) -> _Run:
    """Runs a job, and returns what `steps` found.

    Raises:
      ClusterError: the job failed, or an average was wrong.
      LateLinksError: the links did not keep to their model in several attempts.
    """
    parameters = catalogue.MODELS[model].parameters
    # Operations that are small enough travel with their announcements. The limit is scaled like the
    # model, so these are the same gradients as in the model of full size.
    small = {"HERRING_SMALL_BYTES": str(_SMALL_BYTES * size // (4 * parameters))}
    found = on_time(
        lambda: run_in_lab(
            network,
            "herring_lab.study.negotiation:steps",
            workers,
            workers,
            settings=small,
            model=model,
            size=size,
            compute=compute,
            iterations=iterations,
        )
    )
    ways = {one["way"]: one for one in found}
    for way, one in ways.items():
        if one["wrong"]:
            raise ClusterError(f"{model}, {way}: {one['wrong']} averages are wrong")
    return ways


def _row(workers: int, delay: float, runs: Sequence[_Run]) -> dict[str, Any]:
    """Returns medians over runs, and ratios within runs; None if no run gave a figure."""
    seconds = {
        way: [statistics.median(run[way]["seconds"]) for run in runs] for way in (_PLANNED, *_NAMED)
    }
    ratios, extra = (
        {way: list(map(what, seconds[way], seconds[_PLANNED])) for way in _NAMED}
        for what in (operator.truediv, operator.sub)
    )
    row: dict[str, Any] = {"hosts": workers, "one_way_ms": 1e3 * delay}
    row |= {f"{way}_seconds": _median(found) for way, found in seconds.items()}
    for way, found in ratios.items():
        row[f"{way}_by_planned"] = _median(found)
        row[f"{way}_least"] = min(found, default=None)
        row[f"{way}_most"] = max(found, default=None)
    row |= {f"{way}_extra_ms": _median([1e3 * one for one in extra[way]]) for way in _NAMED}
    return {**row, "model_extra_ms": 2e3 * delay}


def _median(found: Sequence[float]) -> float | None:
    return statistics.median(found) if found else None


def _messages(model: str, workers: int, size: int, runs: Sequence[_Run]) -> list[dict[str, Any]]:
    """Returns a row for each way of averaging, from the first run; none without a run."""
    return [
        {
            "model": model,
            "hosts": workers,
            "averaging": _NAMED.get(way, way),
            "operations": one["operations"],
            "announcements": one["announced"],
            "announcements_of_all": one["announced"] * workers,
            "kilobytes_beside_gradients": (one["bytes"] - 2 * size) / 1e3,
        }
        for run in runs[:1]
        for way, one in run.items()
    ]


def _times(
    scale: Scale,
    model: str,
    size: int,
    compute: float,
    rows: list[dict[str, Any]],
    void: Sequence[str],
) -> Table:
    """Returns the table of one model's times."""
    number = len(catalogue.gradients(model))
    computing = f"{compute:.4g} s of computing" if compute else "no computing"
    title = (
        f"{number} gradients of {model}, scaled to {size / 1e6:.4g} MB, {computing}, strict links "
        f"of {scale.network.rate_bits / 1e6:g} Mbit/s"
    )
    notes = [
        f"seconds: medians of {scale.iterations} steps after {_WARMUP}, of the slowest worker, and "
        f"of {scale.runs} runs; the three ways take turns step by step in the same job",
        "by planned: the same divided by that of a plan, the median of the runs; least and most: "
        "of single runs",
        "extra: time beyond that of a plan; model: one round trip, in which the last announcement "
        "is answered",
        "buffers: a named operation for each fusion buffer of the plan; gradients: one for each "
        "gradient",
        "workers sleep instead of computing, and as many hosts have a dedicated server each",
        "fusion buffers, and operations that travel with their announcement "
        "(HERRING_SMALL_BYTES), are scaled like the model",
        *void,
    ]
    chart = Chart(
        "one_way_ms",
        [*(f"{way}_extra_ms" for way in _NAMED), "model_extra_ms"],
        "delay between hosts, one way (ms)",
        "time of a step beyond that of a plan (ms)",
        by="hosts",
        names={
            **{f"{way}_extra_ms": text for way, text in _NAMED.items()},
            **{str(row["hosts"]): f"{row['hosts']} workers" for row in rows},
            "model_extra_ms": "a round trip",
        },
    )
    return Table(f"negotiation-{model}", title, rows, chart, notes)


def scaled(model: str, size: int) -> list[tuple[int, float]]:
    """Returns (elements, moment) of each gradient in order of production.

    Sizes are scaled to `size` bytes in all. Gradients that are produced within `bert.TOGETHER` of
    the pass have the moment of the last of them, which spares processors most wake-ups.

    Raises:
      ConfigurationError: `size` is too small: rounding would change the largest gradient by half.
    """
    found = catalogue.gradients(model)
    factor = size / 4 / sum(gradient.elements for gradient in found)
    elements = [max(1, int(gradient.elements * factor)) for gradient in found]
    largest = max(range(len(elements)), key=elements.__getitem__)
    lost = size // 4 - sum(elements)
    if 2 * abs(lost) > elements[largest]:
        raise ConfigurationError(
            f"--size {size}: too few bytes for the {len(found)} gradients of {model}; give more"
        )
    elements[largest] += lost
    moment, moments = 2.0, []
    for gradient in reversed(found):
        if gradient.moment < moment - bert.TOGETHER:
            moment = gradient.moment
        moments.append(moment)
    return list(zip(elements, reversed(moments)))


# -- what each worker runs ------------------------------------------------------------------------


@dataclasses.dataclass
class _Way:
    """A way of averaging.

    Attributes:
      operations: the number of fusion buffers or operations.
      gradients: the memory of each gradient.
      step: averages them in place; the argument is the moment at which the step begins.
    """

    operations: int
    gradients: list[np.ndarray]
    step: Callable[[float], None]


def steps(model: str, size: int, compute: float, iterations: int) -> list[dict[str, Any]]:
    """Runs one worker: steps of all ways in turns; returns times and messages on all ranks."""
    import herring

    ways, close = _ways(scaled(model, size), size, compute)
    expected = (herring.size() + 1) / 2
    own: dict[str, Any] = {
        way: {"ended": [], "calls": 0, "bytes": 0, "wrong": 0, "operations": ways[way].operations}
        for way in ways
    }
    starts: dict[str, list[float]] = {way: [] for way in ways}
    names = list(ways)
    for number in range(_WARMUP + iterations):
        first = number % len(names)  # no way is always the first of a turn
        for way in names[first:] + names[:first]:
            found, how = own[way], ways[way]
            for gradient in how.gradients:
                gradient.fill(herring.rank() + 1)
            start = start_together(_MARGIN)
            # Counting takes time, so it is done in steps that are not timed. In the first one ranks
            # may still exchange what they need only once.
            counting = 0 < number < _WARMUP
            before = _counted() if counting else (0, 0)
            sleep_until(start)
            how.step(start)
            end = time.monotonic()
            if counting:
                calls, moved = _counted()
                found["calls"] += calls - before[0]
                found["bytes"] += moved - before[1]
            if number >= _WARMUP:
                starts[way].append(start)
                found["ended"].append(end)
            found["wrong"] += sum(int((part != expected).sum()) for part in how.gradients)
    ranks = herring.allgather_object(own)
    close()
    return [
        {
            "way": way,
            "operations": ways[way].operations,
            "seconds": [
                max(ended) - start
                for start, *ended in zip(starts[way], *(rank[way]["ended"] for rank in ranks))
            ],
            "announced": _mean(rank[way]["calls"] for rank in ranks),
            "bytes": _mean(rank[way]["bytes"] for rank in ranks),
            "wrong": sum(rank[way]["wrong"] for rank in ranks),
        }
        for way in ways
    ]


def _mean(counts: Any) -> float:
    """Returns the mean over ranks and over the steps in which messages are counted."""
    return statistics.mean(counts) / (_WARMUP - 1)


def _counted() -> tuple[int, int]:
    """Returns how many named operations this worker has begun, and bytes sent and received."""
    import herring

    stats = herring.stats()
    return stats["seconds"]["total"]["calls"], stats["bytes_sent"] + stats["bytes_received"]


def _ways(
    parts: Sequence[tuple[int, float]], size: int, compute: float
) -> tuple[dict[str, _Way], Callable[[], None]]:
    """Returns the ways by name, and a function that ends them."""
    import herring

    plan = herring.PlannedReduction(
        [(elements, "float32") for elements, _ in parts],
        name="negotiation",
        buffer_bytes=size // bert.FUSION_BUFFERS,
    )
    together: dict[float, list[int]] = {}
    for index, (_, moment) in enumerate(parts):
        together.setdefault(moment * compute, []).append(index)
    places = [(offset, nbytes) for _, offset, nbytes in plan.placements]
    buffers = [(offset, nbytes) for _, offset, nbytes in plan.buffers]

    def planned(start: float) -> None:
        plan.begin()
        for moment, indices in together.items():
            sleep_until(start + moment)
            plan.ready_all(indices)
        plan.wait()

    ways = {_PLANNED: _Way(len(buffers), _views(plan.arena(0), places, parts), planned)}
    for way, pieces in zip(_NAMED, (buffers, places)):
        memory = herring.empty((len(plan.arena(0)) // 4,), dtype="float32")
        ways[way] = _Way(
            len(pieces),
            _views(memory.view(np.uint8), places, parts),
            _announced(way, memory, pieces, places, together),
        )
    return ways, plan.close


def _views(
    memory: np.ndarray, places: Sequence[tuple[int, int]], parts: Sequence[tuple[int, float]]
) -> list[np.ndarray]:
    """Returns the gradients, which lie in `memory` as in the arena of the plan."""
    return [
        memory[offset : offset + nbytes].view(np.float32)[:elements]
        for (offset, nbytes), (elements, _) in zip(places, parts)
    ]


def _announced(
    way: str,
    memory: np.ndarray,
    pieces: Sequence[tuple[int, int]],
    places: Sequence[tuple[int, int]],
    together: dict[float, list[int]],
) -> Callable[[float], None]:
    """Returns a step that averages each piece with a named operation once its gradients are ready.

    Args:
      way: the beginning of the names of the operations.
      memory: the gradients.
      pieces: offset and bytes of what each operation averages.
      places: offset and bytes of each gradient.
      together: the gradients that appear at each moment.
    """
    import herring

    when = {index: moment for moment, indices in together.items() for index in indices}
    ready: dict[float, list[tuple[str, np.ndarray]]] = {moment: [] for moment in together}
    for number, (first, nbytes) in enumerate(pieces):
        inside = [
            when[index]
            for index, (offset, length) in enumerate(places)
            if offset < first + nbytes and first < offset + length
        ]
        piece = memory[first // 4 : (first + nbytes) // 4]
        ready[max(inside)].append((f"negotiation.{way}.{number}", piece))

    def step(start: float) -> None:
        begun = []
        for moment, operations in ready.items():
            sleep_until(start + moment)
            begun += [
                herring.allreduce_async(piece, "average", name=name) for name, piece in operations
            ]
        for handle in begun:
            handle.wait()

    return step
