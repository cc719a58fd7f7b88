"""The study's moments of gradients: a BERT that computes, and hooks that take the times."""

from __future__ import annotations

import pytest

from herring_lab.simulate import bert
from herring_lab.study import moments


def test_a_small_bert_produces_each_gradient_once_and_the_embedding_last() -> None:
    pytest.importorskip("torch")
    shape = bert.Shape(2, 64)
    passes = moments.backward_passes(shape, 1, 8, 2, lambda *_: None)
    assert len(passes) == 2
    for produced in passes:
        assert sorted(index for index, _ in produced) == list(range(len(bert.variables(shape))))
        times = [moment for _, moment in produced]
        assert times == sorted(times)
        assert times[0] > 0
        # The word embedding is also the matrix of the output, and its gradient is the sum of both.
        assert produced[-1][0] <= 2
    assert [index for index, _ in passes[0]] == [index for index, _ in passes[1]]


def test_the_table_shows_the_last_gradients_beside_table_ii() -> None:
    shape = bert.Shape(2, 64)
    elements = [variable.elements for variable in bert.variables(shape)]
    order = list(range(len(elements) - 1, -1, -1))
    produced = [(index, 1.0 + place) for place, index in enumerate(order)]
    table = moments.table(shape, 1, 8, [produced, produced])
    assert [row["from_the_end"] for row in table.rows] == list(range(18, 0, -1))
    last = table.rows[-1]
    assert (last["variable"], last["name"]) == (0, "embeddings/word")
    assert last["before_end_percent"] == last["model_before_end_percent"] == 0
    assert table.rows[-2]["before_end_percent"] == pytest.approx(100 / len(elements))
    assert last["bytes_percent"] == pytest.approx(100 * elements[0] / sum(elements))
    assert "the same in all" in table.notes[0]
    other = [produced[1], produced[0], *produced[2:]]
    assert "not the same (2 orders)" in moments.table(shape, 1, 8, [produced, other]).notes[0]


def test_the_quick_form_really_computes() -> None:
    pytest.importorskip("torch")
    said: list[str] = []
    (table,) = moments.moments(True, 2, lambda *what: said.append(what[2]))
    assert len(said) == 4
    assert len(table.rows) == 18
    assert "2 layers of 64" in table.title
