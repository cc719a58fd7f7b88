"""Strangers who attack all ports of a job while it trains; `make hostile` has thousands of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "hostile"))

from attack import attack, show
from strangers import KINDS


def test_hundreds_of_strangers_change_nothing() -> None:
    report = attack(600, turns=4, rate=150, early=150)
    text = show(report)
    assert report.problems() == [], text
    assert report.connections >= 600, text
    assert {kind for kind, _ in report.by_kind} == set(KINDS), text
    places = {place for _, place in report.by_kind}
    # Rank 0 listens for other workers and its node has no server; rank 3 waits for lower ranks.
    assert {"rendezvous", "status", "server"} < places, text
    assert any(place.startswith("rank ") for place in places), text
