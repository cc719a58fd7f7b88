"""What a state of elastic training sends, whatever HERRING_OBJECTS lets programs send."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import expect_success, run_job

pytestmark = pytest.mark.usefixtures("runtime_folder")

every_setting = pytest.mark.parametrize("objects", ["pickle", "json", "none"])


@every_setting
def test_values_and_arrays_reach_a_worker_that_comes(objects: str, tmp_path: Path) -> None:
    script = f"""
import herring.elastic
from pathlib import Path
from support import die_once

slot = int(os.environ["HERRING_RANK"])
state = herring.elastic.State(
    step=0, total=np.zeros((2, 3), np.float32, "F"), best=np.float64(-slot), none=np.zeros(0),
    whole=np.array(slot), tables={{"a": (1, b"\\xff", 2j, None), 7: [np.arange(slot + 3)]}},
)

@herring.elastic.run
def train(state):
    while state.step < 20 or herring.size() < 2:
        total = herring.allreduce(np.ones((2, 3), np.float32), "average")
        if slot == 1 and state.step == 5:
            die_once(Path({str(tmp_path / "died")!r}))
        state.total = state.total + total
        state.step += 1
        state.commit()

train(state)
assert state.total.dtype == np.float32 and (state.total == state.step).all(), state.total
assert type(state.best) is np.float64 and state.best == 0.0, state.best
assert state.none.shape == (0,) and state.whole.shape == () and state.whole == 0, state.whole
assert state.tables["a"] == (1, b"\\xff", 2j, None), state.tables
assert state.tables[7][0].tolist() == [0, 1, 2], state.tables
state.total[:] = 0  # arrays that have come can be written to
print("is done")
"""
    job = run_job(["--elastic", "-n", "2"], script, HERRING_OBJECTS=objects)
    output = expect_success(job)
    assert output.count("is done") == 2 and "starting another one" in output, output


@pytest.mark.parametrize("objects", ["json", "none"])
def test_torch_needs_no_pickle(objects: str) -> None:
    script = """
import pickle
import torch
import herring.elastic
import herring.torch as ht

def refuse(*_, **__):
    raise AssertionError("something was unpickled")

pickle.loads = pickle.load = refuse
rank = int(os.environ["HERRING_RANK"])
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
sampler = ht.ElasticSampler(100, 5, seed=1)
sampler.set_epoch(np.int64(3 - rank))
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5 - 0.1 * rank)

@herring.elastic.run
def train(state):
    everyone = herring.allgather(model.weight.detach().numpy().reshape(1, -1))
    assert (everyone == everyone[0]).all(), everyone
    assert optimizer.param_groups[0]["lr"] == 0.1, optimizer
    assert sampler.epoch == 3, sampler.epoch

train(ht.State(model=model, optimizer=optimizer, sampler=sampler))
state = ht.State(model=model, schedule=schedule, epoch=3 - rank, history=[(rank, 0.5)])
train(state)
assert state.epoch == 3 and state.history == [(0, 0.5)] and schedule.gamma == 0.5, state.history
herring.barrier()
print("is done")
"""
    job = run_job(["-n", "2"], script, HERRING_OBJECTS=objects)
    assert expect_success(job).count("is done") == 2


def test_a_value_that_would_be_pickled_is_refused_on_all_ranks() -> None:
    script = """
import fractions
import herring.elastic

state = herring.elastic.State(a=1, b=[fractions.Fraction(1, 3)])
train = herring.elastic.run(lambda state: None)
raises(herring.InvalidArgumentError, "a value has a fractions.Fraction, which", train, state)
state = herring.elastic.State(a=np.array([None]))
raises(herring.InvalidArgumentError, "numpy.ndarray of object, which would be", train, state)
herring.barrier()
print("is done")
"""
    for objects in ("json", "none"):
        job = run_job(["-n", "2"], script, HERRING_OBJECTS=objects)
        assert expect_success(job).count("is done") == 2
