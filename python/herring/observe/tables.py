"""Tables of a job's ranks, servers and groups that fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from herring.base.units import numbers_text, show_duration, show_size
from herring.observe import words

STYLES = {
    "": "",
    "bold": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "stack": "dim",
    "dim": "dim",
}
_GAP = 2  # characters between two columns


def text_of(line: words.Line) -> Text:
    """Returns a line with its colours."""
    return Text(line[1], style=STYLES[line[0]])


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str  # its name
    left: bool = False  # whether its texts begin at its left edge
    least: int = 0  # characters below which its texts are not cut; 0 if they are never cut


@dataclass
class Sheet:
    """A table from which columns are left out where a terminal is too narrow for all of them."""

    columns: Sequence[Column]  # the columns from left to right
    priority: Sequence[str]  # their heads, the most important one first
    # For each line its style and its cells.
    rows: list[tuple[str, list[str]]] = field(default_factory=list)

    def fitted(self, width: int, ascii_only: bool = False) -> Text:
        """Returns the table with the columns that fit, as lines.

        The lines are not made by rich's `Table`: before version 14.3 it counts the space between
        columns behind the last one too, and cuts others for it.

        Args:
            ascii_only: Whether texts are cut without an ellipsis, which ASCII lacks.
        """
        widths = self._widths(width)
        shown = [(at, each) for at, each in enumerate(self.columns) if each.head in widths]
        lines = []
        for style, cells in [("bold", [each.head for each in self.columns]), *self.rows]:
            line = Text(style=style)
            for at, column in shown:
                cell = Text(cells[at])
                cell.truncate(widths[column.head], overflow="crop" if ascii_only else "ellipsis")
                cell.align("left" if column.left else "right", widths[column.head])
                line.append_text(cell).append(" " * _GAP)
            line.rstrip()
            lines.append(line)
        return Text("\n", no_wrap=True).join(lines)

    def left_out(self, width: int) -> list[str]:
        """Returns the heads of the columns that do not fit."""
        widths = self._widths(width)
        return [column.head for column in self.columns if column.head not in widths]

    def _widths(self, width: int) -> dict[str, int]:
        """Returns how wide each column that fits is, by its head."""
        natural = {
            column.head: max(cell_len(column.head), *(cell_len(row[1][at]) for row in self.rows), 0)
            for at, column in enumerate(self.columns)
        }
        least = {
            column.head: min(column.least or natural[column.head], natural[column.head])
            for column in self.columns
        }
        found: dict[str, int] = {}
        left = width + _GAP
        for head in self.priority:
            if not found or least[head] + _GAP <= left:
                found[head] = least[head]
                left -= least[head] + _GAP
        for head in found:
            more = max(min(natural[head] - found[head], left), 0)
            found[head] += more
            left -= more
        return found


def sheets(status: Mapping[str, Any]) -> list[Sheet]:
    """Returns the tables of all ranks, all servers and all groups."""
    found = [table_of_ranks(sorted(status["ranks"], key=_number), counters=True)]
    if status["servers"]:
        found.append(_servers(status["servers"]))
    if status["groups"]:
        found.append(_groups(status["groups"]))
    return found


def table_of_ranks(ranks: Sequence[Mapping[str, Any]], counters: bool = False) -> Sheet:
    """Returns the table of some ranks: how late they are and where, and also what they counted."""
    counted = [
        *("rounds", "calls", "in flight", "sent", "received", "retransmits", "round trip"),
        *("memory", "kept"),
    ]
    sheet = Sheet(
        [
            Column("rank"),
            Column("host", left=True, least=12),
            Column("state", left=True),
            *map(Column, ("for", "late", "steps", "score")),
            Column("cause", left=True),
            *map(Column, counted if counters else ()),
            Column("where", left=True, least=24),
        ],
        ["rank", "state", "late", "host", "where", "cause", "for", "steps", "score"]
        + (["in flight", *(each for each in counted if each != "in flight")] if counters else []),
    )
    for rank in ranks:
        late = rank["late"]
        cells = [
            _text(rank["rank"]),
            _text(rank["host"]),
            _text(rank["state"]),
            _seconds(rank["for"]),
            _seconds(late["median"]),
            words.share(late["share"]),
            "" if rank["score"] is None else f"{rank['score']:.2f}",
            _text(rank["cause"]),
        ]
        if counters:
            cells += [_text(rank[name]) for name in ("rounds", "calls", "in_flight")]
            cells += [_size(rank["bytes_sent"]), _size(rank["bytes_received"])]
            cells += [_text(rank["retransmits"]), _seconds(rank["rtt"])]
            cells += [_size(rank["memory"]), _size(rank["kept"])]
        where = "; ".join(filter(None, (rank["where"], rank["stack"])))
        sheet.rows.append((_style(rank), [*cells, where]))
    return sheet


def _servers(servers: Sequence[Mapping[str, Any]]) -> Sheet:
    counted = ["weight", "in flight", "sent", "received", "retransmits", "round trip", "memory"]
    sheet = Sheet(
        [
            Column("server"),
            Column("kind", left=True),
            Column("host", left=True, least=12),
            Column("state", left=True),
            *map(Column, counted),
            Column("cause", left=True, least=12),
        ],
        [
            *("server", "host", "state", "cause", "kind", "round trip", "retransmits"),
            *("in flight", "sent", "received", "memory", "weight"),
        ],
    )
    for server in servers:
        cells = [_text(server[name]) for name in ("server", "kind", "host", "state")]
        cells.append("" if server["weight"] is None else f"{server['weight']:.3g}")
        cells.append(_text(server["in_flight"]))
        cells += [_size(server["bytes_sent"]), _size(server["bytes_received"])]
        cells += [_text(server["retransmits"]), _seconds(server["rtt"])]
        cells += [_size(server["memory"]), _text(server["cause"])]
        sheet.rows.append((_style(server), cells))
    return sheet


def _groups(groups: Sequence[Mapping[str, Any]]) -> Sheet:
    sheet = Sheet(
        [
            Column("group"),
            Column("name", left=True, least=12),
            *map(Column, ("size", "rounds", "calls", "in flight", "nothing ended for")),
            Column("absent", left=True, least=12),
            Column("ranks", left=True, least=12),
        ],
        [
            *("group", "name", "in flight", "absent", "ranks", "nothing ended for"),
            *("size", "rounds", "calls"),
        ],
    )
    for group in groups:
        cells = [_text(group[name]) for name in ("group", "name", "size", "rounds", "calls")]
        cells += [_text(group["in_flight"]), _seconds(group["for"]) if group["in_flight"] else ""]
        cells += [numbers_text(group["absent"]), numbers_text(group["ranks"])]
        sheet.rows.append((STYLES["warn"] if group["outlier"] else "", cells))
    return sheet


def _style(item: Mapping[str, Any]) -> str:
    if words.abnormal(item):
        return STYLES["bad"]
    return STYLES["warn"] if item["outlier"] or item.get("chronic") else ""


def _number(rank: Mapping[str, Any]) -> int:
    return -1 if rank["rank"] is None else int(rank["rank"])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "" if value is None else show_duration(value)


def _size(count: float | None) -> str:
    return "" if count is None else show_size(count)
