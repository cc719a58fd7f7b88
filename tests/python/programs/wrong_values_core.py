"""Passes values of wrong types to every public function and method of `herring`."""

import inspect
import os
import warnings

import numpy as np

import herring
from wrong_values import VALUES, a_function, attempt, found, fuzz, short

warnings.simplefilter("ignore")
herring.init(timeout="500ms")
STATISTICS = {"statistics"}

usual = {
    "array": lambda: np.ones(3, np.float32),
    "arrays": lambda: [np.ones(3, np.float32)],
    "obj": lambda: 1,
    "to": lambda: 0,
    "source": lambda: 0,
    "shape": lambda: (2, 2),
    "ranks": lambda: [0],
    "path": lambda: os.devnull,
    "timeout": short,
}
REST = {
    "init",
    "shutdown",
    "abort",
    "Group",
    "Handle",
    "Receiving",
    "RoundInfo",
    "RoundStatistics",
    "PlannedReduction",
    "PartialReduction",
    "Quorum",
    "Replay",
}
for name in herring.__all__:
    call = getattr(herring, name)
    if not callable(call) or name in REST or name.endswith("Error"):
        continue
    fuzz(name, call, usual)
for value in VALUES:
    if not isinstance(value, str) or not value:
        attempt("abort(reason)", value, herring.abort, {"reason": value})

fuzz(
    "PlannedReduction",
    herring.PlannedReduction,
    {"gradients": lambda: [(10, "float32")]},
    STATISTICS,
)
planned = herring.PlannedReduction([(10, "float32")], note_bytes=8)
for method in ("arena", "begin", "ready", "ready_all", "note", "wait"):
    fuzz(
        f"planned.{method}",
        getattr(planned, method),
        {"index": lambda: 0, "indices": lambda: [0], "note": lambda: b"", "timeout": short},
    )


def in_rounds(**options):
    one = herring.PartialReduction(**options)
    for _ in one.flush(np.zeros(3, np.float32), 1.0):
        pass


in_rounds.__signature__ = inspect.signature(herring.PartialReduction)
fuzz(
    "PartialReduction",
    in_rounds,
    {"elements": lambda: 3, "dtype": lambda: "float32", "sync": lambda: "solo"},
    STATISTICS,
)
rounds = herring.PartialReduction(3, "float32", sync="solo")
for method in ("contribute", "take", "digest"):
    fuzz(
        f"rounds.{method}",
        getattr(rounds, method),
        {"array": lambda: np.ones(3, np.float32), "timeout": short, "value": lambda: 1},
    )
for one in ("q", "grace", "staleness", "divisor"):
    for value in VALUES:
        attempt(
            f"Quorum({one})",
            value,
            lambda value, one=one: in_rounds(
                elements=3, dtype="float32", sync=herring.Quorum(**{"q": 1, one: value})
            ),
            {"value": value},
        )
for value in VALUES:
    attempt(
        "Replay(path)",
        value,
        lambda path: herring.PartialReduction(3, "float32", sync=herring.Replay(path)),
        {"path": value},
    )

for make in (
    lambda: herring.allreduce_async(np.ones(3)),
    lambda: herring.grouped_allreduce_async([np.ones(3)]),
):
    for method in ("wait", "exception", "add_done_callback"):
        fuzz(f"handle.{method}", getattr(make(), method), {"fn": lambda: a_function})
for name in ("flows", "timeout", "log_level", "no_such_setting"):
    herring.shutdown()
    for value in VALUES:
        attempt(f"init({name})", value, herring.init, {name: value})
        herring.shutdown()
print("\n".join(found) or "all in words", flush=True)
