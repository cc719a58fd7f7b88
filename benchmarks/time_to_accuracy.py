"""Compares the time to accuracy of examples/fashion_resnet.py over Herring and over Gloo, in turns.

  python benchmarks/time_to_accuracy.py                  2 and 4 hosts, 10 Mbit/s (needs root)
  python benchmarks/time_to_accuracy.py --hosts 4 --rounds 5
  python benchmarks/time_to_accuracy.py --draw           also writes the picture of the tutorial

Each host has one worker. Herring has as many further hosts with a server each. The time is that of
training without tests. After each turn, a table has a line for each turn so far, with the ratio of
its two times. Processor seconds are those of all processes from start to end. Gigabytes are what
all workers' hosts sent together.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "fashion_resnet.py"
PICTURE = ROOT / "docs" / "pictures" / "time-to-accuracy"
INK = "#7a7a7a"  # shows on light and dark pages
# What a picture calls each library, its colour, and its width, so that equal curves are seen.
LINES = {"herring": ("Herring, as many servers", "#0072b2", 3.0), "gloo": ("Gloo", "#009e73", 1.2)}


class Run(NamedTuple):
    """What a training did: its curve of steps, seconds and accuracies, and its cost."""

    curve: list[tuple[int, float, float]]
    processor_seconds: float
    gigabytes: float

    def seconds_to(self, accuracy: float) -> float:
        """Returns the seconds until a test first had this accuracy; NaN if none had."""
        return next((at for _, at, reached in self.curve if reached >= accuracy), math.nan)


def train(library: str, hosts: int, options: argparse.Namespace) -> Run:
    """Trains once on emulated hosts."""
    from herring_lab.emulate import Cluster
    from herring_lab.emulate.runner import Plan, run

    servers = hosts if library == "herring" else 0
    with (
        tempfile.TemporaryDirectory(prefix="herring-accuracy-") as folder,
        Cluster(hosts + servers, options.rate * 1e6) as cluster,
        (Path(folder) / "log").open("w+", encoding="utf-8") as log,
    ):
        curve = Path(folder) / "curve.csv"
        command = [sys.executable, str(EXAMPLE), "--curve", str(curve)]
        command += ["--steps", str(options.steps), "--every", str(options.every)]
        command += ["--gloo"] if library == "gloo" else []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = run(cluster, Plan(command, hosts, servers), log.fileno())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if status:
            log.seek(0)
            raise SystemExit(
                f"{library} on {hosts} hosts ended with {status}:\n{log.read()[-3000:]}"
            )
        sent = cluster.total(range(hosts)).sent_bytes
        with curve.open(encoding="utf-8", newline="") as file:
            points = [(int(a), float(b), float(c)) for a, b, c in list(csv.reader(file))[1:]]
    used = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return Run(points, used, sent / 1e9)


def show(turns: list[dict[str, Run]], options: argparse.Namespace) -> None:
    """Prints the turns of a number of hosts, and the median of their ratios."""
    goal = options.accuracy
    print("| turn | Herring (s) | Gloo (s) | ratio |\n|---|---|---|---|")
    ratios = []
    for number, turn in enumerate(turns, 1):
        ours, theirs = (turn[library].seconds_to(goal) for library in LINES)
        ratios.append(theirs / ours)
        print(f"| {number} | {ours:.0f} | {theirs:.0f} | {ratios[-1]:.2f} |")
    print(f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    for library, (label, _, _) in LINES.items():
        runs = [turn[library] for turn in turns]
        print(
            f"{label}: {statistics.median(run.processor_seconds for run in runs):.0f} processor "
            f"seconds, {statistics.median(run.gigabytes for run in runs):.3f} GB sent, accuracies "
            f"at the end {', '.join(f'{run.curve[-1][2]:.4f}' for run in runs)}"
        )


def keep(measured: dict[int, list[dict[str, Run]]]) -> None:
    """Writes the numbers of the picture."""
    with PICTURE.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("hosts", "turn", "library", "step", "seconds", "accuracy"))
        for hosts, turns in measured.items():
            for number, turn in enumerate(turns, 1):
                for library, run in turn.items():
                    rows.writerows(
                        (hosts, number, library, step, f"{seconds:.2f}", accuracy)
                        for step, seconds, accuracy in run.curve
                    )


def draw(options: argparse.Namespace) -> None:
    """Draws the picture of the tutorial from its numbers."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    curves: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    with PICTURE.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            runs = curves.setdefault(row["hosts"], {})
            points = runs.setdefault((row["library"], row["turn"]), [])
            points.append((float(row["seconds"]), float(row["accuracy"])))
    style = {"svg.fonttype": "none", "svg.hashsalt": "herring", "text.color": INK}
    style |= dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    )
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.6, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        panels = figure.subplots(1, len(curves), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (hosts, runs) in zip(panels, curves.items(), strict=True):
            for (library, turn), points in runs.items():
                label, colour, width = LINES[library]
                axes.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    linewidth=width,
                    label=label if turn == "1" else None,
                )
            axes.axhline(options.accuracy, color=INK, linestyle=":", linewidth=0.8)
            axes.set_title(f"{hosts} hosts with a worker each", fontsize="medium")
            axes.set_xlabel("seconds of training")
            axes.grid(color=INK, alpha=0.25, linewidth=0.6)
        panels[0].set_xlim(left=0)
        panels[0].set_ylabel("test accuracy")
        named = panels[0].get_legend_handles_labels()
        figure.legend(*named, loc="outside upper center", ncols=2, fontsize="small", framealpha=0.0)
        title = f"Accuracy over time, links of {options.rate:g} Mbit/s"
        figure.savefig(
            PICTURE.with_suffix(".svg"), transparent=True, metadata={"Date": None, "Title": title}
        )


def main() -> None:
    """Measures, prints, and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", default=[2, 4], help="numbers of workers (default: 2 4)")
    add("--rate", type=float, default=10, help="rate of the links in Mbit/s (default: 10)")
    add("--rounds", type=int, default=3, help="turns (default: 3)")
    add("--steps", type=int, default=120, help="steps of a training (default: 120)")
    add("--every", type=int, default=20, help="steps between two tests (default: 20)")
    add("--accuracy", type=float, default=0.8, help="the accuracy to reach (default: 0.8)")
    add("--draw", action="store_true", help=f"write {PICTURE.relative_to(ROOT)}.svg and .csv")
    add("--redraw", action="store_true", help="only draw the picture again, from its .csv")
    options = parser.parse_args()
    if options.redraw:
        draw(options)
        return
    if os.geteuid() != 0:
        raise SystemExit("emulated hosts need root")
    measured: dict[int, list[dict[str, Run]]] = {hosts: [] for hosts in options.hosts}
    for number in range(options.rounds):
        for hosts, turns in measured.items():
            # Who begins changes from turn to turn.
            order = list(LINES)[:: -1 if number % 2 else 1]
            done = {library: train(library, hosts, options) for library in order}
            turns.append({library: done[library] for library in LINES})
            print(
                f"\n{hosts} hosts, time to {options.accuracy:.0%}, {number + 1} turns:", flush=True
            )
            show(turns, options)
        if options.draw:
            keep(measured)
            draw(options)


if __name__ == "__main__":
    main()
