"""Formats results as a table like nccl-tests does: lines that start with ``#`` are not data."""

from __future__ import annotations

from typing import Any

from herring.base.units import counted
from herring.bench.communicator import Communicator
from herring.bench.measure import Measurement

# The head of each column, its width and its unit.
_COLUMNS = (
    ("size", 12, "(B)"),
    ("count", 12, "(elements)"),
    ("type", 9, ""),
    ("op", 8, ""),
    *((name, 11, "(us)") for name in ("min", "p50", "p99", "max")),
    ("algbw", 9, "(GB/s)"),
    ("linkbw", 9, "(GB/s)"),
    ("wire", 12, "(B/worker)"),
    ("#wrong", 8, ""),
)


def header(communicator: Communicator, operation: str, details: dict[str, Any]) -> str:
    """Returns the lines above the first row."""
    lines = [
        f"# {communicator.name} {operation}: {counted(communicator.size, 'worker')},"
        f" {counted(communicator.num_nodes, 'node')}"
    ]
    lines += [f"# {key}: {_detail(key, value)}" for key, value in details.items()]
    lines.append(
        "# times of the slowest rank; algbw = size / p50; wire = bytes sent per iteration;"
    )
    lines.append("# linkbw = the most that one worker sends or receives / p50")
    for cells in ([name for name, *_ in _COLUMNS], [unit for *_, unit in _COLUMNS]):
        lines.append("#" + _line(cells)[1:])
    return "\n".join(lines)


def _detail(key: str, value: Any) -> str:
    if key != "servers":
        return str(value)
    # The JSON file has each server's details, which would fill the screen here.
    dedicated = sum(bool(server["dedicated"]) for server in value)
    return f"{len(value)} ({dedicated} dedicated)"


def row(measurement: Measurement) -> str:
    """Returns the table's line for one size."""
    entry = measurement.to_json()
    wire, wrong = entry["wire_bytes_per_worker"], entry["wrong"]
    linkbw = entry["linkbw_bytes_per_second"]
    return _line(
        [
            str(entry["bytes"]),
            str(entry["count"]),
            entry["dtype"],
            entry["op"],
            *(f"{entry[f'{key}_seconds'] * 1e6:.1f}" for key in ("min", "p50", "p99", "max")),
            f"{entry['algbw_bytes_per_second'] / 1e9:.3f}",
            "-" if linkbw is None else f"{linkbw / 1e9:.3f}",
            "-" if wire is None else str(wire),
            "N/A" if wrong is None else str(wrong),
        ]
    )


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, (_, width, _) in zip(cells, _COLUMNS))
