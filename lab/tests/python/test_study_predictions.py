"""The study of predictions, with a lab that is itself a simulation whose costs are known."""

from __future__ import annotations

import pytest

from herring_lab.emulate import LateLinksError, LinkReport
from herring_lab.report import write
from herring_lab.simulate.job import JobCosts, run
from herring_lab.simulate.network import load_costs
from herring_lab.study import predictions as module
from herring_lab.study.bench import Network
from herring_lab.study.experiments import Scale

_LATE = LateLinksError(LinkReport(1.0, 0.9, 100, 50, 2e-4, 1e-3, 9e-2, 1e-3, 0, 0))
_TRUE = JobCosts(8e-6, 2.4e-6, 0.3e-9, 0.2e-9, 0.75e-6)


def _scale() -> Scale:
    return Scale([2], 1, Network(200e6), 2, lambda *_: None, quick=True)


def test_costs_are_found_and_settings_predicted(monkeypatch, tmp_path) -> None:
    scale = _scale()

    def measured(setting, size, scale, warmup) -> float:
        scenario = module._scenario(setting, size, scale, _TRUE)
        return run(scenario, scale.iterations + warmup).median(warmup)

    monkeypatch.setattr(module, "_measure", measured)
    (table,) = module.predictions(scale)
    assert len(table.rows) == 2
    assert all(abs(row["error_percent"]) < 3 for row in table.rows)
    assert "2 of 2 within 5 %" in table.notes[0]
    # The costs that users give to herring simulate have the order of the true costs.
    (written,) = [path for path in write(table, tmp_path) if path.name == "costs.json"]
    costs, source = load_costs(str(written))
    assert "herring study predictions" in source
    assert costs.wakeup == pytest.approx(_TRUE.wakeup, rel=0.5)
    assert costs.frame == pytest.approx(2 * _TRUE.call, rel=0.5)
    assert costs.byte == pytest.approx(0.25e-9 + _TRUE.packet / 9000, rel=0.3)
    found = module._calibrate(scale, 1, lambda _: None)
    assert found.byte_received == pytest.approx(_TRUE.byte_received, rel=0.3)


def test_late_links_give_no_figure(monkeypatch) -> None:
    def measured(setting, size, scale, warmup) -> float:
        if setting.delay == module.SETTINGS[1].delay:
            raise _LATE
        return 0.5

    monkeypatch.setattr(module, "_measure", measured)
    (table,) = module.predictions(_scale())
    assert len(table.rows) == 1
    assert [note for note in table.notes if note.startswith("void: 2 + 2, 2 ms")]


def test_the_settings_are_those_that_were_asked_for() -> None:
    assert len(module.SETTINGS) >= 20
    assert {setting.delay for setting in module.SETTINGS} >= {0.0, 1e-2}
    assert any(setting.slower == 0 for setting in module.SETTINGS)
    assert {setting.workers + setting.servers for setting in module.SETTINGS} >= {4, 16}
