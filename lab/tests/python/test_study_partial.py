"""`herring study partial`: tables from made-up results, and short runs of real jobs."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import pytest

from herring.errors import ConfigurationError
from herring_lab.emulate.cluster import ClusterError
from herring_lab.emulate.mpi import MPIS, missing
from herring_lab.study import overlap, partial
from herring_lab.study.bench import Network
from herring_lab.study.hyperplane import MODES, Regression, hyperplane, hyperplane_tables
from herring_lab.study.jobs import run_mpi_ranks

ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))


def late(mode: str, mean: float, active: list[int]) -> dict[str, Any]:
    return {"mode": mode, "mean_ms": mean, "median_ms": 1.0, "began_late_ms": 0.1, "active": active}


def test_times_are_compared_with_solo_and_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [late("full", 6.0, []), late("solo", 0.5, [1, 2]), late("majority", 2.0, [3, 4])]
    monkeypatch.setattr(partial, "run_workers", lambda *_, **__: list(own))

    def ranks(mpi: str, *_: object, **__: object) -> list[dict[str, Any]]:
        if mpi == "mpich":
            raise ConfigurationError("mpich was not done after 300 s")
        return [late(mpi, 8.0, [])]

    monkeypatch.setattr(partial, "run_mpi_ranks", ranks)
    begun: list[None] = []
    times, active = partial.microbenchmark(
        5, 2, ["mpich", "openmpi"], lambda: begun.append(None), ["skipped: gloo: is no MPI"]
    )
    assert len(begun) == 3
    rows = {row["mode"]: row for row in times.rows}
    assert list(rows) == ["full", "solo", "majority", "openmpi"]
    assert rows["openmpi"]["solo_is_faster_by"] == 16
    assert rows["openmpi"]["majority_is_faster_by"] == 4
    assert rows["openmpi"]["least_active"] is None
    assert (rows["majority"]["least_active"], rows["majority"]["mean_active"]) == (3, 3.5)
    assert [rows[mode]["model_ms"] for mode in ("full", "solo", "majority")] == [2, 0, 0.6]
    assert times.notes[-2:] == [
        "skipped: gloo: is no MPI",
        "skipped: mpich was not done after 300 s",
    ]
    assert active.rows[1] == {"iteration": 1, "solo": 2, "majority": 4}


def test_late_workers_and_ranks_are_measured() -> None:
    peers = [mpi for mpi in MPIS if not missing(mpi)]
    times, active = partial.microbenchmark(5, 4, peers)
    between = [f"{mode}, between workers" for mode in MODES[1:]]
    assert [row["mode"] for row in times.rows] == [*MODES, *between, *peers], times.notes
    assert all(row["mean_ms"] > 0 for row in times.rows)
    assert len(active.rows) == 4
    for row in active.rows:
        assert 1 <= row["solo"] <= 5
        assert 3 <= row["majority"] <= 5


@pytest.mark.parametrize("mpi", MPIS)
def test_an_mpi_job_that_fails_or_hangs_is_ended(mpi: str) -> None:
    if reason := missing(mpi):
        pytest.skip(reason)
    with pytest.raises(ConfigurationError, match="no attribute 'nothing'"):
        run_mpi_ranks(mpi, "herring_lab.study.partial:nothing", 2)
    mark = 90_000_000 + os.getpid()
    with pytest.raises(ConfigurationError, match=f"{mpi} was not done after 2 s"):
        run_mpi_ranks(mpi, "herring_lab.study.partial:late_ranks", 2, timeout=2, iterations=mark)
    assert not [line for line in _commands() if str(mark).encode() in line]


def _commands() -> list[bytes]:
    lines = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:  # has ended
            continue
    return lines


def test_the_learning_rate_falls_to_nothing() -> None:
    how = Regression(rounds=4, rate=0.2)
    assert [how.rate_at(number) for number in range(6)] == pytest.approx(
        [0.2, 0.15, 0.1, 0.05, 0.05, 0.05]
    )


def test_training_is_compared_with_full_synchrony() -> None:
    def run(seconds: float, loss: float) -> dict[str, Any]:
        curve = [[2, seconds / 2, 9.0], [4, seconds, loss]]
        return {
            "seconds": seconds,
            "loss": loss,
            "least": 4.5,
            "contributions": 30,
            "curve": curve,
        }

    runs = {(300, "full"): run(70.0, 4.0), (300, "solo"): run(50.0, 4.1)}
    table, curves = hyperplane_tables(runs, Regression(rounds=4))
    full, solo = table.rows
    assert (full["speedup"], full["model_speedup"]) == (1, 1)
    assert solo["speedup"] == pytest.approx(1.4)
    assert solo["model_speedup"] == pytest.approx(1.75)
    assert solo["of_ideal_percent"] == pytest.approx(80)
    assert solo["loss_above_full_percent"] == pytest.approx(2.5)
    assert curves.rows[-1] == {"run": "solo, 300 ms", "round": 4, "seconds": 50.0, "loss": 4.1}


@pytest.mark.parametrize("mode", MODES)
def test_a_hyperplane_is_found_and_replicas_are_equal(mode: str) -> None:
    """`train` itself fails when replicas differ."""
    how = Regression(dimensions=64, batch=64, rounds=48, step=4, rate=0.3)
    found = hyperplane(mode, 6, how, workers=4)
    # The loss starts at 64. Noise of the few points, and late gradients, leave a rest.
    assert 0.9 * found["least"] < found["loss"] < 1.2 * found["least"]
    assert [number for number, _, _ in found["curve"]] == list(range(4, 49, 4))
    times = [seconds for _, seconds, _ in found["curve"]]
    assert times == sorted(times) and times[-1] <= found["seconds"]
    assert found["curve"][0][2] > found["loss"]
    if mode == "full":
        assert found["contributions"] == 48 * 4
    else:  # a round has at least the quorum's contributions, and at most one per worker
        assert (2 if mode == "majority" else 1) * 48 <= found["contributions"] <= 48 * 4


@pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")
def test_steps_without_delays_in_the_lab() -> None:
    table = overlap.no_delay(Network(), 2, 0.01, 3)
    rows = {row["mode"]: row for row in table.rows}
    assert list(rows) == list(overlap.MODES)
    assert rows["full"]["of_full_percent"] == pytest.approx(100)
    assert rows["full"]["model_rounds_per_second"] == pytest.approx(20)
    assert rows["full"]["rounds_per_second"] < 25  # each round sleeps 40 ms
    assert rows["full"]["mean_contributors"] == rows["full, overlapped"]["mean_contributors"] == 2
    assert all(1 <= row["mean_contributors"] <= 2 for row in table.rows)


@pytest.mark.parametrize("lab", [True, False])
def test_everything_is_announced_and_a_lack_noted(
    lab: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"seconds": 1.0, "loss": 4.0, "least": 4.0, "contributions": 8, "curve": []}
    monkeypatch.setattr(partial, "missing", lambda mpi: "get it" if mpi == "mpich" else "")
    monkeypatch.setattr(partial, "run_mpi_ranks", lambda mpi, *_, **__: [late(mpi, 8.0, [])])
    monkeypatch.setattr(
        partial,
        "run_workers",
        lambda *_, **__: [late("full", 6.0, []), late("solo", 1.0, [1]), late("majority", 2, [2])],
    )
    monkeypatch.setattr(partial, "hyperplane", lambda *_: run)

    def in_lab(network: Network, *_: object) -> Any:
        assert network.rate_bits == 1e9
        if not lab:
            raise ClusterError("the lab needs root")
        return partial.Table("partial-no-delay", "title", [{"mode": "full"}])

    monkeypatch.setattr(partial, "no_delay", in_lab)
    said: list[tuple[int, int, str]] = []
    tables = partial.partial_study(True, lambda *what: said.append(what), Network(1e9))
    assert [number for number, _, _ in said] == list(range(12))
    assert {total for _, total, _ in said} == {12}
    assert [what for _, _, what in said][-1] == "hyperplane: majority, 40 ms"
    assert ("partial-no-delay" in [table.name for table in tables]) == lab
    notes = list(tables[0].notes)
    assert "skipped: mpich: get it" in notes
    assert any("the lab needs root" in note for note in notes) != lab
    for table in tables:
        if table.name != "partial-no-delay":
            assert any("sleep instead of computing" in note for note in table.notes), table.name
