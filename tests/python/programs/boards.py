"""Boards of all kinds get the seconds of steps."""

import torch

import herring.torch as herring
from support import raises

NAMES = {
    "herring/step_seconds",
    "herring/compute_seconds",
    "herring/exposed_seconds",
    "herring/node_stage_seconds",
    "herring/push_seconds",
    "herring/pull_seconds",
    "herring/bytes_sent",
    "herring/bytes_received",
    "herring/late_seconds",
}


class Writer:  # such as TensorBoard's SummaryWriter
    def __init__(self):
        self.said = []

    def add_scalar(self, tag, value, global_step=None):
        self.said.append((tag, value, global_step))


class Run:  # such as a run of W&B
    def __init__(self):
        self.said = []

    def log(self, data, step=None, commit=None):
        self.said.append((data, step, commit))


class Plain:
    def __init__(self):
        self.said = []

    def log(self, values, step):
        self.said.append((values, step))


herring.init()
writer, run, given, plain, called = Writer(), Run(), Run(), Plain(), []
loggers = [herring.StepLogger(board, every=3) for board in (writer, run, plain)]
loggers.append(herring.StepLogger(lambda values, step: called.append((values, step)), every=3))
of_given, silent = herring.StepLogger(given, every=3), herring.StepLogger(None)
written = []
for step in range(7):
    herring.allreduce(torch.ones(1000))
    written.append([bool(log.step()) for log in loggers])
    of_given.step(100 + step)
    assert silent.step() == {}
# The first call of step() only begins to measure.
assert written == [[step in (3, 6)] * 4 for step in range(7)], written
assert {tag for tag, _, _ in writer.said} == NAMES
assert [step for tag, _, step in writer.said if tag == "herring/step_seconds"] == [3, 6]
assert [(step, commit) for _, step, commit in run.said] == [(None, False)] * 2
assert [(step, commit) for _, step, commit in given.said] == [(103, None), (106, None)]
assert [step for _, step in plain.said] == [step for _, step in called] == [3, 6]
for values in [data for data, *_ in (*run.said, *given.said, *plain.said, *called)]:
    assert values.keys() == NAMES
    assert values["herring/step_seconds"] > 0
    assert values["herring/exposed_seconds"] >= 0
    both = values["herring/compute_seconds"] + values["herring/exposed_seconds"]
    assert abs(both - values["herring/step_seconds"]) < 1e-6, values
    assert herring.size() == 1 or values["herring/bytes_sent"] > 0

raises(herring.InvalidArgumentError, "must have add_scalar", herring.StepLogger, 3)
for wrong in 0, -1, "10", 1.5:
    raises(herring.InvalidArgumentError, "every is", herring.StepLogger, None, wrong)
herring.shutdown()
raises(herring.ShutdownError, "not initialized", loggers[0].step)
