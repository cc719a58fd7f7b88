"""The study's training: sizes and moments of BERT-large, the models, and steps in the lab."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import Any

import pytest

from herring.errors import ConfigurationError, InvalidArgumentError
from herring_lab.simulate import bert
from herring_lab.study import training
from herring_lab.study.bench import Network, Point
from herring_lab.study.experiments import Scale

ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))


def test_bert_large_has_the_papers_variables() -> None:
    variables = bert.variables()
    assert len(variables) == 398
    assert len({variable.name for variable in variables}) == 398
    assert sum(variable.elements for variable in variables) == 336_232_258  # "340 million"
    for index, elements, _ in bert.TABLE_II:
        assert variables[index].elements == elements


def test_gradients_come_as_table_ii_says() -> None:
    gradients = bert.gradients()
    assert sorted(gradient.variable for gradient in gradients) == list(range(398))
    assert all(before.moment < after.moment for before, after in itertools.pairwise(gradients))
    assert gradients[-1].moment == 1
    seen = gradients[-len(bert.TABLE_II) :]
    assert [gradient.variable for gradient in seen] == [row[0] for row in bert.TABLE_II]
    per_microsecond = (1 - seen[0].moment) / (bert.TABLE_II[-1][2] - bert.TABLE_II[0][2])
    for gradient, (_, _, microseconds) in zip(seen, bert.TABLE_II):
        behind = (bert.TABLE_II[-1][2] - microseconds) * per_microsecond
        assert 1 - gradient.moment == pytest.approx(behind, abs=1e-9)
    # The paper's table shows the last 10 ms. A node does 1143 sequences per second, 512 per step.
    backward = 512 / 1143 * (1 - bert.FORWARD_PART)
    assert (1 - seen[0].moment) * backward == pytest.approx(0.010, rel=0.15)


def test_layers_repeat_the_one_that_was_seen() -> None:
    moments = {gradient.variable: gradient.moment for gradient in bert.gradients()}
    for layer in range(1, 24):
        for index in range(5, 15):
            gap = moments[index] - moments[15]
            assert moments[index + 16 * layer] - moments[15 + 16 * layer] == pytest.approx(gap)


def test_the_schedule_is_late_but_never_early() -> None:
    exact = [
        (g.variable, bert.FORWARD_PART + (1 - bert.FORWARD_PART) * g.moment)
        for g in bert.gradients()
    ]
    schedule = bert.schedule()
    assert [index for index, _ in schedule] == [index for index, _ in exact]
    for (_, moment), (_, own) in zip(schedule, exact):
        assert 0 <= moment - own <= bert.TOGETHER
    assert schedule[-1] == (0, 1)
    assert schedule[-2][1] < 1  # no gradient waits for the word embedding


def test_scaled_gradients_keep_their_proportions() -> None:
    elements = bert.scaled_elements(20e6)
    assert sum(elements) * 4 == pytest.approx(20e6, rel=1e-3)
    assert elements[0] / sum(elements) == pytest.approx(31260672 / 336_232_258, rel=1e-3)
    with pytest.raises(InvalidArgumentError, match="too few"):
        bert.scaled_elements(1e4)


def test_models_of_a_step() -> None:
    size = training.COMMUNICATION * 4 * 25e6
    for strategy in ("herring", "ddp", "ring"):
        assert training.model_step(strategy, 1, size, 25e6, 4) == 4
    herring, ddp, ring = (
        training.model_step(strategy, 64, size, 25e6, 4) for strategy in ("herring", "ddp", "ring")
    )
    assert 4 < herring < ddp < ring
    # Section IV.B: 48 % for Horovod, which does not overlap, on 64 nodes.
    assert 4 / ring == pytest.approx(0.85 / 1.78, abs=0.01)
    # If averaging is short, only the bytes of the last gradient lengthen a step.
    brief = training.model_step("herring", 16, 2e6, 1e12, 4)
    assert brief == pytest.approx(4, rel=1e-5)


def test_what_cannot_be_measured_is_refused_before_anything_starts() -> None:
    def report(*_: object) -> None:
        raise AssertionError("started")

    pytest.importorskip("torch")
    scale = Scale([2], 1000, Network(), 1, report, compute_seconds=0)
    with pytest.raises(ConfigurationError, match="--compute"):
        training.training(scale)
    scale = Scale([2], 1000, Network(), 1, report, compute_seconds=1e-6)
    with pytest.raises(InvalidArgumentError, match="more computing"):
        training.training(scale)


def test_the_table_compares_with_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def measured(_network: Network, strategy: str, hosts: int, *_: object) -> dict[str, Any]:
        steps = [99.0, 4.0 * hosts**0.5, 1.0] if strategy == "ring" else [4.0, 4.0, 4.4]
        return {
            "step_seconds": steps,
            "last_gradient_seconds": [4.01],
            "processor_seconds": 0.5,
            "retransmits": 3,
        }

    monkeypatch.setattr(training, "measure_training", measured)
    monkeypatch.setattr(training, "missing", lambda _peer: "not installed")
    said: list[str] = []
    scale = Scale([4, 16], 1000, Network(), 3, lambda *what: said.append(what[2]))
    table = training.training(scale)
    assert said[0] == "Herring, 1 host"
    assert len(said) == len(table.rows) == 9
    assert "slept" in table.title
    last = {row["strategy"]: row for row in table.rows if row["hosts"] == 16}
    assert last["Herring"]["efficiency"] == 1
    assert last["ring, not overlapped"]["efficiency"] == 0.25
    assert last["ring, not overlapped"]["herring_is_faster_by"] == 4
    assert last["Herring"]["steps_per_second_of_all"] == 4
    assert last["Herring"]["late_seconds"] == pytest.approx(0.01)


def test_servers_are_compared_with_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_network: Network, point: Point, _iterations: int) -> dict[str, Any]:
        return {"p50_seconds": 3.0 - 0.5 * point.servers}

    monkeypatch.setattr(training, "measure", measured)
    table = training.cost_check(Scale([2], int(25e6), Network(), 1, lambda *_: None))
    assert [row["servers"] for row in table.rows] == [0, 1, 2, 3, 4]
    assert table.rows[0]["model_seconds"] == pytest.approx(1.5)  # the time of a ring
    assert table.rows[-1]["model_seconds"] == pytest.approx(1.0)
    assert table.rows[-1]["faster_by"] == 3
    assert table.rows[-1]["price_by_none"] == pytest.approx((1 + 4.9 / 31.2) / 3)


@pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")
def test_steps_in_the_lab() -> None:
    """Checks the results of a training; the quick study runs the other strategies."""
    pytest.importorskip("torch")
    found = training.measure_training(Network(), "herring", 2, 1e6, 0.1, 2)
    assert found["wrong"] == 0  # all gradients are averages over both hosts
    assert found["bytes"] == pytest.approx(1e6, rel=0.01)
    assert len(found["step_seconds"]) == 2
    # A step sleeps for its computing time, and the last worker to begin still has to average.
    assert all(seconds >= 0.1 for seconds in found["last_gradient_seconds"])
    assert all(seconds > 0.1 for seconds in found["step_seconds"])


class _Alone:
    """Does not average, and gives wrong gradients in the given steps."""

    rank, size = 0, 1

    def __init__(self, model: Any, wrong_in: tuple[int, ...] = ()) -> None:
        self.model, self.wrong_in, self.steps = model, wrong_in, 0

    def step(self) -> None:
        self.steps += 1
        self.model.zero_grad()
        self.model(1 if self.steps in self.wrong_in else 0).backward()


def test_a_worker_times_its_steps_and_checks_the_first_and_the_last() -> None:
    worker = pytest.importorskip("herring_lab.study.training_worker")
    model = worker.BertLarge(1e6, 0.02)
    times = worker._train(_Alone(model), model, 2, 3)
    assert len(times.ended) == 4
    steps = worker._steps_of_all([times.ended])
    # Averaging ends after the last gradient.
    assert all(map(float.__gt__, steps, times.produced))
    assert all(seconds >= 0.02 for seconds in times.produced)
    assert len(times.produced) == 3
    assert times.wrong == 0
    elements = sum(part.numel() for part in model.parts)
    for wrong_in, expected in (((1,), elements), ((5,), elements), ((1, 5), 2 * elements)):
        assert worker._train(_Alone(model, wrong_in), model, 2, 3).wrong == expected


def test_waiting_for_who_begins_late_counts_once() -> None:
    worker = pytest.importorskip("herring_lab.study.training_worker")
    # The second worker ends its first step late, so the first worker waits in its next step. Its
    # own steps take 4, 5 and 4.
    ended = [[10.0, 14.0, 19.0, 23.0], [10.5, 15.0, 19.0, 22.5]]
    assert worker._steps_of_all(ended) == [4.5, 4.0, 4.0]
