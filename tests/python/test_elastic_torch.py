"""Elastic training with PyTorch: its state, and how samples are divided."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import herring.torch as ht
from herring.torch import elastic
from jobs import expect_success, program, run_job

EXAMPLES = Path(__file__).parents[2] / "examples"


LEFT = "has left the job, as it was told to, and is not started again"


@pytest.mark.usefixtures("runtime_folder")
def test_training_is_that_of_its_contributors(tmp_path: Path) -> None:
    """The parameters are those of the same steps made alone, whoever contributed to each.

    One worker dies and comes back, and another one has notice, and does not.
    """
    script = program("elastic_digits", str(tmp_path), "6", "0 20 SIGKILL", "2 60 SIGTERM")
    options = ["--elastic", "--notice", "SIGTERM", "-n", "3"]
    output = expect_success(run_job(options, script))
    assert output.count("is done: True") >= 1, output
    assert output.count(LEFT) == 1 and output.count("starting another one") == 1, output
    assert "is done: False" not in output, output
    assert len(list(tmp_path.glob("event*"))) == 2
    assert "2, 3]" in output, output


@pytest.mark.usefixtures("runtime_folder")
def test_the_example_goes_on() -> None:
    script = program("elastic_digits", "--epochs", "4", "--die", "1", "--at", "20", folder=EXAMPLES)
    options = ["--elastic", "--restarts", "0", "-n", "3"]
    output = expect_success(run_job(options, script))
    assert "[0] 3 workers go on from step 0" in output
    assert "[0] 2 workers go on from step 21" in output
    assert float(re.search(r"test accuracy ([\d.]+)", output).group(1)) > 0.7


class World:
    """Samplers of all ranks of a job, one after the other in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = SimpleNamespace(rank=0, size=1)
        monkeypatch.setattr(elastic.herring, "rank", lambda: self.place.rank)
        monkeypatch.setattr(elastic.herring, "size", lambda: self.place.size)

    def batches(self, samplers: list[ht.ElasticSampler]) -> list[list[int]]:
        """Returns the samples of each step, of all ranks together, to the end of the epoch."""
        self.place.size = len(samplers)
        drawn = []
        for self.place.rank, sampler in enumerate(samplers):
            mine = list(sampler)
            assert len(mine) == len(sampler)
            drawn.append([mine[i : i + 4] for i in range(0, len(mine), 4)])
        assert len({len(one) for one in drawn}) == 1  # all ranks make the same steps
        return [[index for batch in step for index in batch] for step in zip(*drawn)]


@pytest.mark.parametrize("length", [1, 7, 12, 100, 103])
@pytest.mark.parametrize("sizes", [[1], [3], [3, 2, 4], [5, 1]])
def test_every_sample_is_used_once(
    monkeypatch: pytest.MonkeyPatch, length: int, sizes: list[int]
) -> None:
    """However the number of workers changes within an epoch, after two steps each time."""
    world = World(monkeypatch)
    position, used = 0, []
    for number, size in enumerate(sizes):
        samplers = [ht.ElasticSampler(length, 4, seed=5) for _ in range(size)]
        for sampler in samplers:
            sampler.load_state_dict({"epoch": 0, "position": position})
        steps = world.batches(samplers)
        for step in steps if number == len(sizes) - 1 else steps[:2]:
            used += step
            samplers[0].advance()
        position = samplers[0].position
    assert position == length
    assert set(used) == set(range(length))
    assert len(used) - length < max(sizes)  # repeated to divide evenly
    assert len(set(used[:position])) == length if len(used) == length else True


def test_epochs_have_orders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    World(monkeypatch)
    sampler = ht.ElasticSampler(list(range(20)), 4)
    first = list(sampler)
    sampler.advance()
    assert list(sampler) == first[4:]
    sampler.set_epoch(0)  # the present one goes on
    assert sampler.position == 4
    sampler.set_epoch(1)
    assert sampler.position == 0
    assert sorted(sampler) == sorted(first) and list(sampler) != first
    assert list(ht.ElasticSampler(20, 4, shuffle=False)) == list(range(20))


def test_wrong_values() -> None:
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ht.InvalidArgumentError, match="one and other are optimizers"):
        ht.State(one=sgd, other=sgd)
    with pytest.raises(ht.InvalidArgumentError, match="has no length"):
        ht.ElasticSampler(object(), 4)
    with pytest.raises(ht.InvalidArgumentError, match="batch_size is 0"):
        ht.ElasticSampler(10, 0)
    state = ht.State(model=model, optimizer=sgd, epoch=0)
    with pytest.raises(AttributeError, match="'model' of a State cannot be replaced"):
        state.model = model


def test_an_optimizer_counts_steps_and_moves_the_sampler() -> None:
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    class Sampler(ht.ElasticSampler):
        moves = 0

        def advance(self) -> None:
            self.moves += 1

    sampler = Sampler(10, 2)
    state = ht.State(model=model, optimizer=sgd, sampler=sampler)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        sgd.step()
    assert (state.steps, sampler.moves) == (3, 3)
    state.commit()
    assert state.steps == 3
