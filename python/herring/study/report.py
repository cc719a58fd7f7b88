"""Writes tables as Markdown, JSON and plots."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from herring.study.experiments import Chart, Table

__all__ = ["markdown", "write"]


def markdown(table: Table) -> str:
    """Returns the table for people."""
    names = list(table.rows[0])
    lines = [f"## {table.title}", "", "| " + " | ".join(name.replace("_", " ") for name in names)]
    lines[-1] += " |"
    lines.append("|" + "---|" * len(names))
    lines += ["| " + " | ".join(_show(row[name]) for name in names) + " |" for row in table.rows]
    lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def write(table: Table, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes ``NAME.md``, ``NAME.json`` and, with matplotlib, ``NAME.png``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / f"{table.name}.md", folder / f"{table.name}.json"
    text.write_text(markdown(table))
    document = {"title": table.title, "rows": table.rows, "notes": list(table.notes)}
    data.write_text(json.dumps(document, indent=1) + "\n")
    written = [text, data]
    if table.chart is not None:
        plot = folder / f"{table.name}.png"
        if _draw(table, table.chart, plot):
            written.append(plot)
    return written


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw(table: Table, chart: Chart, path: pathlib.Path) -> bool:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    groups = {row[chart.by] if chart.by else "": None for row in table.rows}
    for colour, group in enumerate(groups):
        rows = [row for row in table.rows if not chart.by or row[chart.by] == group]
        for column in chart.y:
            # What a model says is dashed, in the colour of what was measured.
            model = column.startswith("model")
            points = [(row[chart.x], row[column]) for row in rows if row[column] is not None]
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                "--" if model else "o-",
                color=f"C{colour if chart.by else chart.y.index(column)}",
                alpha=0.6 if model else 1.0,
                label=None if model and chart.by else f"{group} {column.replace('_', ' ')}".strip(),
            )
    if chart.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x)
    axes.set_title(table.title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    return True
