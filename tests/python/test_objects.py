"""Objects that programs send: by pickle, as JSON, or not at all; and what Herring itself sends."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from herring.arrays import plain
from herring.errors import HerringError, InvalidArgumentError
from jobs import expect_success, run_job
from test_jobs_in_turn import run_ranks

SEND = """
herring.init()
rank = herring.rank()
value = {"a": [1, -2.5, None, True, "\\u00fc\\n", {"b": []}], "": 10**30, "-0": -0.0}
def same(a, b):
    return type(a) is type(b) and repr(a) == repr(b)
"""


def test_by_default_any_object_is_sent() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            SEND
            + """
value = {1: (2, {3}), "array": np.arange(3)}
assert same(herring.broadcast_object(value if rank == 0 else None), value)
assert all(same(one, (r, value)) for r, one in enumerate(herring.allgather_object((rank, value))))
    """,
        )
    )


def test_as_json_objects_arrive_exactly_or_are_refused_before_anything_is_sent() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            SEND
            + """
import enum, pickle
class Colour(enum.IntEnum):
    RED = 1
class Evil:
    def __reduce__(self):
        raise AssertionError("it was pickled")
pickle.dumps = pickle.loads = None  # nobody calls them
assert same(herring.broadcast_object(value if rank == 0 else None), value)
assert all(same(one, [r, value]) for r, one in enumerate(herring.allgather_object([rank, value])))
deep = []
for _ in range(300):
    deep = [deep]
for bad, what in [
    (np.zeros(3), "obj is of type numpy.ndarray"), (np.float64(1), "numpy.float64"),
    ((1, 2), "tuple"), ({1: 2}, "a key of obj is of type int"), ({"a": [0, {2}]}, "obj['a'][1]"),
    (b"1", "bytes"), (1j, "complex"), (float("nan"), "nan"), (float("inf"), "inf"),
    (Colour.RED, "Colour"), ("\\ud800", "surrogate"), (deep, "levels deep"), (10**9999, "digits"),
    (Evil(), "Evil"), (lambda: 0, "function"), (print, "builtin_function"),
]:
    for send in (herring.allgather_object, herring.broadcast_object):
        raises(herring.InvalidArgumentError, what, send, bad)
        raises(herring.InvalidArgumentError, "HERRING_OBJECTS=json", send, bad)
assert herring.allreduce(np.ones(3), "sum")[0] == 2  # the job goes on
    """,
            HERRING_OBJECTS="json",
        )
    )


def test_a_rank_that_sends_a_pickle_all_the_same_runs_nothing() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            SEND
            + """
import pickle
from herring.arrays import objects
class Evil:
    def __reduce__(self):
        return os._exit, (9,)
if rank == 1:
    objects._form = lambda kind: objects._Form(pickle.dumps, lambda data: None)
    herring.allgather_object(Evil())
else:
    raises(herring.HerringError, "not JSON", herring.allgather_object, 1)
herring.barrier()
    """,
            HERRING_OBJECTS="json",
        )
    )


def test_none_lets_nothing_through_and_needs_nobody_else() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            SEND
            + """
if rank == 0:
    for send in (herring.allgather_object, herring.broadcast_object):
        raises(herring.ConfigurationError, "HERRING_OBJECTS=none", send, 1)
herring.barrier()
    """,
            HERRING_OBJECTS="none",
        )
    )


@pytest.mark.parametrize("objects", ["json", "none"])
def test_horovods_functions_send_what_the_setting_allows(objects: str) -> None:
    output = expect_success(
        run_job(
            ["-n", "2"],
            SEND
            + """
import pickle
import herring.horovod.torch as hvd
pickle.dumps = pickle.loads = None
if os.environ["HERRING_OBJECTS"] == "none":
    for send in (hvd.allgather_object, hvd.broadcast_object):
        raises(herring.ConfigurationError, "HERRING_OBJECTS=none", send, 1)
else:
    assert same(hvd.broadcast_object(value if rank == 0 else None, 0), value)
    assert all(same(one, [r, value]) for r, one in enumerate(hvd.allgather_object([rank, value])))
    for send in (hvd.allgather_object, hvd.broadcast_object):
        raises(herring.InvalidArgumentError, "obj is of type numpy.ndarray", send, np.zeros(3))
herring.barrier()
print("done")
    """,
            HERRING_OBJECTS=objects,
        )
    )
    assert output.count("done") == 2, output


def test_what_herring_itself_sends_is_not_pickled() -> None:
    # PyTorch's optimizers copy their state, which uses pickle's protocol but not its reader.
    output = expect_success(
        run_job(
            ["-n", "2"],
            """
import pickle
import torch
import herring.torch
def refuse(*_, **__):
    raise AssertionError("something was unpickled")
pickle.loads = pickle.load = refuse
herring.init()
rank = herring.rank()
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
herring.torch.broadcast_parameters(model.state_dict())
optimizer = herring.torch.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1), betas=(0.5, 0.6 + 0.1 * rank)),
    named_parameters=model.named_parameters(),
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
herring.torch.broadcast_optimizer_state(optimizer, 1)
group = getattr(optimizer, "inner", optimizer).param_groups[0]
assert group["lr"] == 0.2 and group["betas"] == (0.5, 0.7), group
rows = herring.torch.scatter(torch.arange(4.0).reshape(4, 1) if rank == 0 else None)
assert rows.tolist() == [[2.0 * rank], [2.0 * rank + 1]]
rows = herring.scatter(np.arange(4) if rank == 0 else None)
assert rows.tolist() == [2 * rank, 2 * rank + 1]
raises(herring.MismatchError, "differs between ranks", herring.torch.broadcast_parameters,
       torch.nn.Linear(3, 2 + rank).state_dict(), name="odd")
class Odd:
    pass
group["odd"] = Odd()
raises(herring.InvalidArgumentError, "Odd", herring.torch.broadcast_optimizer_state, optimizer)
herring.barrier()  # rank 0 refuses before rank 1 calls, which must hear of that and not of an end
print("done")
    """,
            HERRING_OBJECTS="none",
        )
    )
    assert output.count("done") == 2, output


def test_with_pickle_an_optimizer_may_have_any_option() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            """
import fractions
import torch
import herring.torch
herring.init()
optimizer = torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=0.5)
optimizer.param_groups[0]["odd"] = fractions.Fraction(herring.rank() + 1, 3)
herring.torch.broadcast_optimizer_state(optimizer, 1)
assert optimizer.param_groups[0]["odd"] == fractions.Fraction(2, 3)
    """,
        )
    )


def test_ranks_that_differ_are_told_who_has_what() -> None:
    outputs = run_ranks(
        "raises(herring.ConfigurationError, 'json (rank 1), pickle (ranks 0, 2)', herring.init)\n"
        "print('told')",
        3,
        HERRING_OBJECTS={1: "json"},
    )
    for output in outputs:
        assert output.strip().endswith("told"), output


def _some(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(7 if depth > 3 else 10)
    if kind < 7:
        return rng.choice(
            [
                *(None, True, 1 - 2.5j, math.inf, "", rng.getrandbits(90) - 2**89),
                rng.uniform(-1, 1) * 10 ** rng.randint(0, 300),
                "".join(map(chr, rng.sample(range(1, 0xD800), 3))),
                rng.randbytes(5),
            ]
        )
    items = [_some(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 9:
        return {rng.choice([i, str(i), (i, "x"), i + 0.5]): one for i, one in enumerate(items)}
    return items if kind == 7 else tuple(items)


def test_plain_data_come_back_as_they_were() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        value = _some(rng)
        assert repr(plain.unpacked(plain.packed(value))) == repr(value)


def test_what_is_not_plain_is_refused_or_described() -> None:
    with pytest.raises(InvalidArgumentError, match=r"builtins\.set is not plain"):
        plain.packed([{1}])
    packed = plain.packed([{1}], lambda one: ("set", list(one)))
    assert plain.unpacked(packed, lambda word, data: {word: set(data)}["set"]) == [{1}]
    for wrong in (b"", b"\xff", b"{}", packed, b'{"tuple": 1}', b'{"bytes": "?"}', b"[" * 100_000,
                  b'{"a": 1, "b": 2}', b'{"dict": [1]}', b'{"complex": [1]}'):  # fmt: skip
        with pytest.raises(HerringError, match="does not understand"):
            plain.unpacked(wrong)


def test_a_rank_without_memory_for_an_object_refuses_it_on_all_ranks() -> None:
    script = """
import resource
herring.init()
r = herring.rank()
limit = resource.getrlimit(resource.RLIMIT_AS)
sent = bytes(64 << 20) if r == 0 else None
herring.barrier()
if r == 1:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), limit[1]))
    raises(MemoryError, "", herring.broadcast_object, None)
    resource.setrlimit(resource.RLIMIT_AS, limit)
else:
    raises(herring.InvalidArgumentError, "refused by rank 1", herring.broadcast_object, sent)
assert herring.broadcast_object("small" if r == 0 else None) == "small"
"""
    expect_success(run_job(["-n", "3"], script))
