"""Shows what a soak found, as text and as a picture."""

from __future__ import annotations

import itertools
from pathlib import Path

from herring.base.units import counted
from herring.errors import ConfigurationError
from herring_lab.soak.judge import Outcome, growth

_MOST_LINES = 3


def lines(outcome: Outcome) -> list[str]:
    """Returns the report."""
    figures = outcome.figures()
    kinds = figures["kinds"]
    said = [
        f"seed        {outcome.seed}",
        f"steps       {figures['steps']}, on {counted(len(outcome.steps), 'rank')}",
        f"faults      {figures['faults']} ({kinds['kill']} killed, {kinds['stop']} stopped), "
        f"{figures['survived']} survived",
    ]
    for name, key in (("recovery", "recovery_seconds"), ("replaced", "replaced_seconds")):
        times = figures[key]
        if times["max"] is not None:
            shown = ", ".join(f"{share} {1e3 * times[share]:.0f} ms" for share in times)
            said.append(f"{name:12}{shown}")
    rates = figures["steps_per_second"]
    if figures["throughput_kept"] is not None:
        said.append(
            f"throughput  {100 * figures['throughput_kept']:.1f} % kept: "
            f"{rates['with_faults']:.1f} of {rates['without']:.1f} steps/s"
        )
    if not figures["problems"]:
        said.append("bits        all equal, in every step and on every rank")
    grown = sorted(growth(outcome.samples), key=lambda one: one.first - one.last)
    for what in ("memory", "descriptors", "threads"):
        most = next((one for one in grown if one.what == what), None)
        if most is not None:
            said.append(f"most growth {most}")
    return said + [f"FAILED      {problem}" for problem in figures["problems"]]


def draw(outcome: Outcome, path: Path) -> None:
    """Draws step times, memory and descriptors over time, with the faults.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ConfigurationError(f"a plot needs matplotlib: {error}") from None
    figure, rows = pyplot.subplots(3, 1, figsize=(9, 9), sharex=True, layout="constrained")
    ends = outcome.steps[0].ends if outcome.steps else []
    begin = ends[0] if ends else 0.0
    durations = [1e3 * (b - a) for a, b in itertools.pairwise(ends)]
    rows[0].semilogy([end - begin for end in ends[1:]], durations, linewidth=0.7)
    for what, colour in (("kill", "#d55e00"), ("stop", "#cc79a7")):
        at = [fault.at - begin for fault in outcome.faults if fault.what == what]
        rows[0].plot(at, [min(durations, default=1)] * len(at), "^", color=colour, label=what)
    rows[0].legend(loc="upper right", fontsize="small")
    rows[0].set_ylabel("step (ms)")
    for row, key, unit in ((rows[1], "memory", 1e6), (rows[2], "descriptors", 1)):
        for who in sorted({sample.who for sample in outcome.samples}):
            own = [sample for sample in outcome.samples if sample.who == who]
            values = [getattr(sample, key) / unit for sample in own]
            row.plot([sample.at - begin for sample in own], values, linewidth=1, label=who)
        row.set_ylabel("memory (MB)" if key == "memory" else key)
    rows[1].legend(loc="upper right", fontsize="x-small", ncols=2)
    rows[2].set_xlabel("time (s)")
    figure.savefig(path)
    pyplot.close(figure)
