"""Draws docs/pictures/over-hosts.svg: the time of an all-reduce over the number of hosts.

Usage: python tools/draw_over_hosts.py (needs matplotlib). The numbers are in over-hosts.csv beside
the picture: seconds for 6.25 MB of float32 on emulated links of 200 Mbit/s. They come from the
table "Over the number of hosts" of the study. Its column of 16 hosts is left out: there two
processors were the limit, not the links.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE, RATE = 6.25e6, 200e6 / 8  # bytes; bytes per second
LIMIT = SIZE / RATE
INK = "#7a7a7a"  # shows on light and dark pages
LIBRARIES = {
    "herring": ("Herring, as many servers", "#0072b2", "o"),
    "ring": ("Herring's ring, no servers", "#d55e00", "s"),
    "gloo": ("Gloo", "#009e73", "^"),
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "herring",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def main() -> None:
    """Writes the picture."""
    with (PICTURES / "over-hosts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    hosts = [int(row["hosts"]) for row in rows]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for column, (label, colour, marker) in LIBRARIES.items():
            seconds = [float(row[column]) for row in rows]
            axes.plot(hosts, seconds, color=colour, marker=marker, label=label)
        ring = [2 * (count - 1) / count * LIMIT for count in hosts]
        axes.plot(hosts, ring, color=INK, linestyle=":", label="limit of a ring, 2(n-1)/n M/B")
        axes.plot(hosts, [LIMIT] * len(hosts), color=INK, linestyle="--", label="limit M/B")
        axes.set_xscale("log", base=2)
        axes.set_xticks(hosts, [str(count) for count in hosts])
        axes.set_ylim(0, 0.5)
        axes.set_xlabel("workers, each on a host of its own")
        axes.set_ylabel("seconds for an all-reduce")
        axes.grid(color=INK, alpha=0.25, linewidth=0.6)
        axes.legend(fontsize="small", framealpha=0.0)
        title = "All-reduce of 6.25 MB over links of 200 Mbit/s"
        figure.savefig(
            PICTURES / "over-hosts.svg", transparent=True, metadata={"Date": None, "Title": title}
        )


if __name__ == "__main__":
    main()
