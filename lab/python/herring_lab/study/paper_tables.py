"""Compares tables V and VI of the Herring paper with a model that has two numbers per row.

Nothing is measured. Averaging 100 MB on n nodes of 8 GPUs (p3dn.24xlarge, 100 Gbit/s) and as many
servers takes ``M/R + s lg n``. R is the rate that hosts reach if nobody waits (``herring_time`` of
`herring.models`). s is the extra delay of the slowest host for each doubling (``lateness``). Both
are fitted to the first and last point of a row; the points between are predicted.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from herring.bench import models
from herring_lab.report import Chart, Table

#: Numbers of nodes with 8 GPUs each: 64 to 512 GPUs.
NODES = (8, 16, 32, 64)
#: Bytes of gradients.
SIZE = 100e6

_RATE = 100e9  # bits per second of the links of a p3dn (node) and a c5n.18xlarge (server)
_ENDPOINT = 70e9  # bits per second that one process reaches, section III-3
_FRAME = 9000  # bytes, section IV-A
_PCIE = 4 * 12e9  # bytes per second, section III-A, step 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a published table.

    Attributes:
      name: the name for people.
      published: milliseconds by number of nodes, in the order of `NODES`.
    """

    name: str
    published: tuple[float, ...]


#: The rows with EFA and proxies (both tables), TCP (table V) and one server process (table VI).
ROWS = (
    Row("EFA, proxies", (13.457, 14.21, 15.237, 16.449)),
    Row("without EFA", (20.53, 24.21, 27.49, 31.32)),
    Row("without proxies", (17.83, 19.3, 20.2, 22.2)),
)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The two numbers that are fitted to a row.

    Attributes:
      rate: bits per second that hosts reach if nobody waits.
      late: seconds that each doubling of the nodes adds.
    """

    rate: float
    late: float

    def seconds(self, nodes: int) -> float:
        """Returns the seconds of an average on `nodes` nodes."""
        waiting = models.lateness(nodes, self.late)
        return models.herring_time(nodes, SIZE, self.rate / 8) + waiting


def fit(row: Row, first: int = 0, second: int = -1) -> Fit:
    """Fits the model to two points of a row, given by their indices in `NODES`."""
    early, late = row.published[first] / 1e3, row.published[second] / 1e3
    doublings = models.lateness(NODES[second], 1.0) - models.lateness(NODES[first], 1.0)
    slope = (late - early) / doublings
    base = early - models.lateness(NODES[first], slope)
    return Fit(8 * SIZE / base, slope)


def linear(row: Row, nodes: int) -> float:
    """Returns seconds by the paper's own ``p alpha + n beta``, fitted to the same two points."""
    early, late = row.published[0] / 1e3, row.published[-1] / 1e3
    alpha = (late - early) / (NODES[-1] - NODES[0])
    base = early - NODES[0] * alpha
    return models.herring_time(nodes, SIZE, SIZE / base, alpha)


def paper_tables() -> list[Table]:
    """Returns a table of published and modelled times, and one of what the slopes come from."""
    fits = [fit(row) for row in ROWS]
    return [_times(fits), _slopes(fits)]


def _off(seconds: float, published: float) -> float:
    """Returns the relative error in percent."""
    return round(100 * (1e3 * seconds / published - 1), 6)


def _times(fits: list[Fit]) -> Table:
    rows: list[dict[str, Any]] = []
    for row, found in zip(ROWS, fits):
        for place, (nodes, published) in enumerate(zip(NODES, row.published)):
            seconds = found.seconds(nodes)
            ends = place in (0, len(NODES) - 1)
            rows.append(
                {
                    "row": row.name,
                    "nodes": nodes,
                    "published_ms": published,
                    "model_ms": 1e3 * seconds,
                    "off_percent": _off(seconds, published),
                    "used_to": "calibrate" if ends else "check",
                    "linear_off_percent": _off(linear(row, nodes), published),
                }
            )
    limit = 1e3 * models.herring_time(8, SIZE, _RATE / 8)
    ring = 1e3 * models.colocated_time(8, 0, SIZE, _RATE / 8)
    own = ROWS[0].published[0]
    notes = [
        "model: M/R + s lg n, R and s from 8 and 64 nodes of the row; 16 and 32 are predictions",
        f"{own:g} ms at 8 nodes has dedicated servers, one for each node as section IV-A says: the "
        f"limit M/B is {limit:.2f} ms, and it is {100 * limit / own:.0f} % of the rate. Colocated "
        f"servers cannot be meant: in float32 2(n-1)M/(nB) is {ring:.2f} ms, more than was "
        f"measured; only in 16 bits ({ring / 2:.2f} ms) could they",
        "linear off: the paper's own p alpha + gamma + n beta, calibrated on the same points",
    ]
    chart = Chart(
        "nodes",
        ["published_ms", "model_ms"],
        "nodes of 8 GPUs (number)",
        "averaging 100 MB (ms)",
        by="row",
        x_scale="log",
    )
    title = "Tables V and VI of the Herring paper: 100 MB, p3dn, 100 Gbit/s"
    return Table("paper-tables", title, rows, chart, notes)


def _slopes(fits: list[Fit]) -> Table:
    efa, single = fits[0], fits[-1]
    causes = (
        "every sum waits for the slowest of n workers, every step for the slowest of n servers",
        "the same, and flows that share unevenly: the slowest of n over single paths",
        "the same, and one process that serves n flows in turn",
    )
    rows = [
        {
            "row": row.name,
            "rate_gbit": found.rate / 1e9,
            "nobody_waits_ms": 8e3 * SIZE / found.rate,
            "per_doubling_ms": 1e3 * found.late,
            "beyond_efa_ms": 1e3 * (found.late - efa.late),
            "comes_from": cause,
        }
        for row, found, cause in zip(ROWS, fits, causes)
    ]
    extra = [
        (tcp_ms - efa_ms) / models.lateness(nodes, 1.0)
        for nodes, efa_ms, tcp_ms in zip(NODES, ROWS[0].published, ROWS[1].published)
    ]
    alpha = (ROWS[0].published[-1] - ROWS[0].published[0]) / (NODES[-1] - NODES[0])
    frame = 8e3 * _FRAME / _RATE
    worst = max(abs(_off(linear(ROWS[1], n), p)) for n, p in zip(NODES, ROWS[1].published))
    process = 8e3 * SIZE * (1 / single.rate - 1 / efa.rate)
    notes = [
        "what TCP adds to EFA is nothing on one node and grows with each doubling by "
        f"{min(extra):.2f} to {max(extra):.2f} ms in all four points: it comes with the number of "
        "peers, and the bytes alone cost no more than with EFA",
        f"one process adds {process:.2f} ms where nobody waits; the paper's {_ENDPOINT / 1e9:g} "
        f"Gbit/s of one endpoint would add {8e3 * SIZE * (1 / _ENDPOINT - 1 / _RATE):.2f} ms",
        f"the paper's p alpha is linear in n. As the slope of the first row it needs an alpha "
        f"of {1e3 * alpha:.0f} us, {alpha / frame:.0f} times what a jumbo frame takes at 100 "
        f"Gbit/s, and without EFA it is off by up to {worst:.0f} %",
        f"of the {8e3 * SIZE / efa.rate:.2f} ms with EFA where nobody waits the link explains "
        f"{8e3 * SIZE / _RATE:.2f}; the rest does not follow from the tables (a copy over four "
        f"PCIe links of 12 GB/s that nothing overlaps would take {1e3 * SIZE / _PCIE:.2f})",
        "four points per row fix two numbers, not their causes: those are the paper's (sections "
        "II-A, V-A, V-B), and consistent with the numbers",
    ]
    return Table("paper-tables-slopes", "What the rows' slopes come from", rows, notes=notes)
