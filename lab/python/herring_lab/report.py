"""Writes tables of results as Markdown, JSON and, with matplotlib, as a picture (SVG)."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from herring.base.provenance import write_results, writing
from herring.errors import ConfigurationError

#: Colours of curves, after Okabe and Ito: colour-blind people can tell them apart, and they show on
#: white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#9a7d0a", "#767676")
#: Colour of text and axes, which shows on white and on black.
INK = "#7a7a7a"
_MARKERS = "osD^vPX*<>"
# The most points that each get a number on the axis, and the most curves whose legend fits inside.
_FEW = 8
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "herring",  # the same numbers give the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclasses.dataclass(frozen=True)
class Chart:
    """How a table is drawn.

    Attributes:
      x: the column on the x axis.
      y: the columns to draw; columns that come from a model begin with ``model``.
      x_name, y_name: labels of the axes, with the unit in parentheses if there is one.
      by: a column; each of its values gets a curve of its own.
      x_scale, y_scale: ``linear`` or ``log``; for x also ``symlog``, which has room for 0.
      names: labels of columns and of values of `by` in the legend, where the names will not do.
      computed: whether all values are from models or simulations, and none was measured.
    """

    x: str
    y: Sequence[str]
    x_name: str
    y_name: str
    by: str | None = None
    x_scale: str = "linear"
    y_scale: str = "linear"
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    computed: bool = False

    def is_model(self, column: str) -> bool:
        """Returns whether the values of a column come from a model."""
        return self.computed or column.startswith("model")

    def measured_by(self, column: str) -> str:
        """Returns the column with the measurements that belong to a model's column."""
        return column.removeprefix("model_")

    def name_of(self, name: str) -> str:
        """Returns the label of a column or of a value of `by` in the legend."""
        return self.names.get(name, name.replace("_", " "))


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows with equal keys, in the order in which they are shown.

    Attributes:
      name: the name of the files, without suffix.
      title: a line for people, which tells what was kept fixed.
      rows: numbers, or text, by column.
      chart: how to draw the table; None: it has no picture.
      notes: what a reader must know.
      files: JSON documents that are written beside the table, by name, for other commands to read.
    """

    name: str
    title: str
    rows: list[dict[str, Any]]
    chart: Chart | None = None
    notes: Sequence[str] = ()
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


def markdown(table: Table) -> str:
    """Returns the table as Markdown."""
    names = list(table.rows[0])
    lines = [f"## {table.title}", "", "| " + " | ".join(name.replace("_", " ") for name in names)]
    lines[-1] += " |"
    lines.append("|" + "---|" * len(names))
    lines += ["| " + " | ".join(_show(row[name]) for name in names) + " |" for row in table.rows]
    lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def show(tables: Sequence[Table]) -> None:
    """Prints tables: as tables on a terminal, and as Markdown elsewhere."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        for table in tables:
            console.print(_on_terminal(table))
    else:
        print("\n".join(map(markdown, tables)))


def _on_terminal(table: Table) -> RenderableType:
    """Returns the title, the rows and the notes for a terminal."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, first in table.rows[0].items():
        grid.add_column(
            Text(name.replace("_", " ")),
            justify="right" if isinstance(first, int | float) else "left",
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(Text(_show(value)) for value in row.values()))
    notes = Grid.grid(padding=(0, 1))
    for note in table.notes:
        notes.add_row("-", Text(note))
    return Group(Text(table.title, style="bold"), grid, notes, Text())


def write(table: Table, folder: pathlib.Path, options: Any = None) -> list[pathlib.Path]:
    """Writes ``NAME.md``, ``NAME.json``, with matplotlib ``NAME.svg``, and the table's own files.

    Args:
      table: the results.
      folder: where to write; the folder is made if it does not exist.
      options: the options of the command, for ``provenance`` in the JSON document.

    Returns:
      The paths of all files that were written.

    Raises:
      ConfigurationError: a file cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / f"{table.name}.md", folder / f"{table.name}.json"
    with writing(text):
        text.write_text(markdown(table))
    write_results(data, dataclasses.asdict(table), options)
    own = [folder / name for name in table.files]
    for path in own:
        with writing(path):
            path.write_text(json.dumps(table.files[path.name], indent=1) + "\n")
    with writing(folder):
        return [text, data, *own, *draw(table, folder)]


def output_folder(text: str) -> pathlib.Path:
    """Makes the folder of ``--out``, so that a wrong one is reported before anything is measured.

    Raises:
      ConfigurationError: it cannot be made, or files cannot be written there.
    """
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"--out {text!r} cannot be used as a folder: {error.strerror}"
        ) from None
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(f"--out {text!r}: this folder is not writable")
    return folder


def read(file: pathlib.Path) -> Table:
    """Reads a table that `write` has written as JSON.

    Raises:
      ConfigurationError: the file cannot be read, or it does not hold a table.
    """
    try:
        found = json.loads(file.read_text())
        found.pop("provenance", None)
        chart = found["chart"]
        return Table(**{**found, "chart": None if chart is None else Chart(**chart)})
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(
            f"{file} is not a table: give a JSON file that 'herring study' wrote"
        ) from None


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclasses.dataclass
class _Curve:
    """One curve of a picture: a column, or a column of some of the rows."""

    points: list[tuple[float, float]]
    label: str
    model: bool
    colour: int | None  # None: a model without a measured curve beside it
    marker: int = 0


def draw(table: Table, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws the table's chart to ``NAME.svg``.

    Colour-blind people can tell the colours apart, and the colours show on light and dark pages.
    Text is text. Measured curves have markers. Curves of a model or a simulation are dashed, in
    the colour of the measured curve that they belong to.

    Returns:
      The file; an empty list without matplotlib or if the table has no chart.
    """
    chart = table.chart
    if chart is None:
        return []
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return []
    path = folder / f"{table.name}.svg"
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        curves = _curves(table, chart)
        for curve in curves:
            axes.plot(
                [x for x, _ in curve.points],
                [y for _, y in curve.points],
                linestyle="--" if curve.model else "-",
                marker="" if curve.model else _MARKERS[curve.marker % len(_MARKERS)],
                markersize=5,
                color=INK if curve.colour is None else COLOURS[curve.colour % len(COLOURS)],
                markerfacecolor="none" if (curve.colour or 0) >= len(COLOURS) else None,
                linewidth=1.2 if curve.model else 1.8,
                label=curve.label,
            )
        if any(curve.model for curve in curves):
            axes.plot([], [], linestyle="none", label="dashed lines are models")
        _scale(axes, chart, [x for curve in curves for x, _ in curve.points])
        axes.set_xlabel(chart.x_name)
        axes.set_ylabel(chart.y_name)
        axes.set_title(table.title, fontsize="medium", wrap=True)
        axes.grid(color=INK, alpha=0.25, linewidth=0.6)
        if len(axes.get_legend_handles_labels()[1]) <= _FEW:
            axes.legend(fontsize="small", framealpha=0.0)
        else:
            figure.legend(fontsize="small", framealpha=0.0, loc="outside right upper")
        figure.savefig(path, transparent=True, metadata={"Date": None, "Title": table.title})
    return [path]


def _curves(table: Table, chart: Chart) -> list[_Curve]:
    """Returns the measured curves, then those of models."""
    measured = [column for column in chart.y if not chart.is_model(column)]
    models = [column for column in chart.y if chart.is_model(column)]
    found = []
    if chart.by is None:
        for index, column in enumerate(measured):
            name = chart.name_of(column)
            found.append(_Curve(_points(table.rows, chart, column), name, False, index, index))
        alone = [column for column in models if chart.measured_by(column) not in measured]
        for column in models:
            own = chart.measured_by(column)
            # A single model without measurements is a limit; several need colours of their own.
            colour = None if len(alone) == 1 and measured else len(measured)
            if own in measured:
                colour = measured.index(own)
            elif colour is not None:
                colour += alone.index(column)
            points = _points(table.rows, chart, column)
            found.append(_Curve(points, chart.name_of(column), True, colour))
        return [curve for curve in found if curve.points]
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in table.rows:
        groups.setdefault(row[chart.by], []).append(row)
    for colour, (group, rows) in enumerate(groups.items()):
        for index, column in enumerate(measured):
            name = chart.name_of(str(group))
            name += f", {chart.name_of(column)}" if len(measured) > 1 else ""
            marker = index if len(measured) > 1 else colour
            found.append(_Curve(_points(rows, chart, column), name, False, colour, marker))
    for column in models:
        if _alike(table, chart, column):
            points = sorted(set(_points(table.rows, chart, column)))
            found.append(_Curve(points, chart.name_of(column), True, None))
            continue
        for colour, rows in enumerate(groups.values()):
            # The model lies beside its group's curve, so it needs no entry in the legend.
            found.append(_Curve(_points(rows, chart, column), "_model", True, colour))
    return [curve for curve in found if curve.points]


def _points(rows: list[dict[str, Any]], chart: Chart, column: str) -> list[tuple[float, float]]:
    return [(row[chart.x], row[column]) for row in rows if row[column] is not None]


def _alike(table: Table, chart: Chart, column: str) -> bool:
    """Returns whether all groups have the same value of a column at the same x."""
    values: dict[Any, set[Any]] = {}
    for row in table.rows:
        values.setdefault(row[chart.x], set()).add(row[column])
    return all(len(there) == 1 for there in values.values())


def tick(x: float, axis: str) -> str:
    """Returns the label of a place on an axis: ``4 MiB`` for sizes in bytes, else ``1,000,000``."""
    if axis.endswith("(bytes)"):
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if x >= factor and x % factor == 0:
                return f"{x // factor:g} {unit}"
    return f"{x:,.0f}" if float(x).is_integer() else f"{x:g}"


def _scale(axes: Any, chart: Chart, xs: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    places = sorted(set(xs))
    axes.set_xscale(chart.x_scale, **_zero(chart.x_scale, places))
    axes.set_yscale(chart.y_scale)
    if chart.y_scale == "linear":
        axes.set_ylim(bottom=0)
    whole = all(isinstance(x, int) for x in places)
    if whole and chart.x_scale != "linear":
        places = places[:: -(-len(places) // _FEW)]
    if (whole or chart.x_scale != "linear") and len(places) <= _FEW:
        axes.set_xticks(places)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(x, chart.x_name)))
        axes.xaxis.set_minor_locator(NullLocator())
    elif whole and chart.x_scale == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.y_scale == "log":
        low, high = axes.get_ylim()
        if high < 100 * low:  # the axis has few powers of ten, or none
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _zero(scale: str, places: list[float]) -> dict[str, float]:
    """Returns where a ``symlog`` axis becomes logarithmic: at the least value above 0."""
    if scale != "symlog":
        return {}
    return {"linthresh": min((x for x in places if x > 0), default=1.0)}
