"""Values of wrong types in every public function: an error of Herring's own, in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobs import expect_success, run_job

# What nothing takes; and what some arguments take and others do not.
SCRIPT = """
    import inspect, warnings

    warnings.simplefilter("ignore")
    herring.init(timeout="500ms")

    class Odd:
        def __repr__(self):
            raise RuntimeError("no repr")

    def a_function(*_):
        return 0

    VALUES = [
        None, Odd(), object(), "text", "", "\\udc80", "x" * 600, b"bytes", 5, -1, 1 << 40, 1 << 70,
        1.5, float("nan"), float("-inf"), True, [], {}, (1, 2), [None], ["a"], {"a": 1}, 1 + 2j,
        a_function, int, np.ones(3, np.complex64), np.array(["a"]), np.array([object()]),
        np.ones((2, 2)).T[:, ::2], np.float32(2), np.ones(2, ">f4"), range(3), slice(3),
    ]
    INSIDES = ("incompatible function", "argument types are supported", "nanobind", "std::",
               "DLPack array of code", "_core", "NoneType: None")

    found = []

    def attempt(where, value, call, arguments):
        try:
            call(**arguments)
        except herring.HerringError as error:
            text = str(error)
            if not text or any(one in text for one in INSIDES):
                found.append(f"{where} = {kind(value)}: {type(error).__name__}: {text}")
        except Exception as error:
            text = str(error).splitlines()[0][:200] if str(error) else ""
            found.append(f"{where} = {kind(value)}: {type(error).__name__}: {text}")

    def kind(value):
        shown = "" if isinstance(value, Odd) else " ".join(repr(value).split())[:60]
        return f"{type(value).__name__} {shown}"

    def fuzz(where, call, usual):
        known = inspect.signature(call).parameters
        given = {name: make for name, make in usual.items() if name in known}
        missing = [name for name, one in known.items() if one.default is one.empty
                   and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
                   and name not in given]
        assert not missing, (where, missing)
        for name, one in known.items():
            if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or name in SKIPPED:
                continue
            for value in VALUES:
                if name == "timeout" and isinstance(value, int) and value > 5:
                    continue  # these are right, and a receive would wait for them
                arguments = {key: make() for key, make in given.items()}
                arguments[name] = value
                attempt(f"{where}({name})", value, call, arguments)

    def short():
        return 0.01
"""

CORE = """
    SKIPPED = set()
    usual = {
        "array": lambda: np.ones(3, np.float32), "arrays": lambda: [np.ones(3, np.float32)],
        "obj": lambda: 1, "to": lambda: 0, "source": lambda: 0, "shape": lambda: (2, 2),
        "ranks": lambda: [0], "timeout": short,
    }
    series = iter(range(10**9))
    REST = {"init", "shutdown", "abort", "Group", "Handle", "Receiving", "RoundInfo",
            "RoundStatistics", "PlannedReduction", "PartialReduction", "Quorum", "Replay"}
    for name in herring.__all__:
        call = getattr(herring, name)
        if not callable(call) or name in REST or name.endswith("Error"):
            continue
        fuzz(name, call, usual)
    for value in VALUES:
        if not isinstance(value, str) or not value:
            attempt("abort(reason)", value, herring.abort, {"reason": value})

    SKIPPED = {"statistics"}
    fuzz("PlannedReduction", herring.PlannedReduction, {"gradients": lambda: [(10, "float32")]})
    planned = herring.PlannedReduction([(10, "float32")], note_bytes=8)
    for method in ("arena", "begin", "ready", "ready_all", "note", "wait"):
        fuzz(f"planned.{method}", getattr(planned, method),
             {"index": lambda: 0, "indices": lambda: [0], "note": lambda: b"", "timeout": short})

    def in_rounds(**options):
        one = herring.PartialReduction(**options)
        for _ in one.flush(np.zeros(3, np.float32), 1.0):
            pass

    in_rounds.__signature__ = inspect.signature(herring.PartialReduction)
    fuzz("PartialReduction", in_rounds, {
        "elements": lambda: 3, "dtype": lambda: "float32", "sync": lambda: "solo"})
    rounds = herring.PartialReduction(3, "float32", sync="solo")
    for method in ("contribute", "take", "digest"):
        fuzz(f"rounds.{method}", getattr(rounds, method), {
            "array": lambda: np.ones(3, np.float32), "timeout": short, "value": lambda: 1})
    for one in ("q", "grace", "staleness", "divisor"):
        for value in VALUES:
            attempt(f"Quorum({one})", value, lambda value, one=one: in_rounds(
                elements=3, dtype="float32", sync=herring.Quorum(**{"q": 1, one: value})),
                {"value": value})
    for value in VALUES:
        attempt("Replay(path)", value, lambda path: herring.PartialReduction(
            3, "float32", sync=herring.Replay(path)), {"path": value})

    for make in (lambda: herring.allreduce_async(np.ones(3)),
                 lambda: herring.grouped_allreduce_async([np.ones(3)])):
        for method in ("wait", "exception", "add_done_callback"):
            fuzz(f"handle.{method}", getattr(make(), method), {"fn": lambda: a_function})
    for name in ("flows", "timeout", "log_level", "no_such_setting"):
        herring.shutdown()
        for value in VALUES:
            attempt(f"init({name})", value, herring.init, {name: value})
            herring.shutdown()
    print("\\n".join(found) or "all in words", flush=True)
"""

TORCH = """
    import torch
    import torch.distributed as dist
    import herring.torch

    SKIPPED = {"obj"}  # whatever pickle says of it
    VALUES += [torch.ones(3, dtype=torch.complex64), torch.nn.Linear(2, 2), torch.float32,
               dist.ReduceOp.BAND, dist.ReduceOp.SUM, torch.ones(3, device="meta"),
               torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.float8_e5m2),
               torch.quantize_per_tensor(torch.ones(2), 0.1, 10, torch.quint8)]
    usual = {
        "tensor": lambda: torch.ones(3), "timeout": short, "parameters": lambda: {},
        "optimizer": lambda: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1),
        "obj": lambda: 1, "ranks": lambda: [0], "module": lambda: torch.nn.Linear(2, 2),
        "named_parameters": lambda: list(torch.nn.Linear(2, 2).named_parameters()),
        "num_features": lambda: 3, "hook": lambda: a_function,
    }
    functions = {name: getattr(herring.torch, name) for name in herring.torch.__all__}
    functions |= {f"functional.{name}": getattr(herring.torch.functional, name)
                  for name in herring.torch.functional.__all__}
    REST = {"init", "shutdown", "backend", "functional", "Group", "Handle", "Join", "RoundInfo",
            "RoundStatistics", "Quorum", "Replay", "GradientReducer", "ddp_comm_hook",
            "SyncBatchNorm", "DistributedOptimizer", "DistributedDataParallel"}
    for name, call in functions.items():
        if name not in REST and not name.endswith("Error"):
            fuzz(f"torch.{name}", call, usual)

    SKIPPED = {"dim", "check_reduction", "find_unused_parameters", "static_graph",
               "gradient_as_bucket_view", "init_sync", "broadcast_buffers", "broadcast_parameters",
               "forward_sync_buffers"}
    fuzz("torch.DistributedDataParallel", herring.torch.DistributedDataParallel, usual)

    def optimizer(**options):
        herring.torch.DistributedOptimizer(**options).close()

    optimizer.__signature__ = inspect.signature(herring.torch.DistributedOptimizer)
    del usual["named_parameters"]
    fuzz("torch.DistributedOptimizer", optimizer, usual)
    print("\\n".join(found) or "all in words", flush=True)
"""


@pytest.mark.parametrize("functions", [CORE, TORCH], ids=["core", "torch"])
@pytest.mark.timeout(180)
def test_wrong_types_are_refused_in_words(functions: str) -> None:
    if functions is TORCH:
        pytest.importorskip("torch")
    # No second rank: what it would have to call follows from values that are wrong.
    job = run_job(["-n", "1"], SCRIPT + functions, 150, HERRING_LOG_LEVEL="error")
    assert "all in words" in expect_success(job), job.stdout[-6000:]


USUAL = """
    import datetime

    herring.init()
    try:
        import torch
    except ImportError:
        torch = None
    bad = herring.InvalidArgumentError
    raises(bad, "the dtype complex64 is not supported; use one of float32", herring.allreduce,
           np.ones(3, np.complex64))
    raises(bad, "pairs of floats", herring.allreduce, np.ones(3, np.complex64))
    raises(bad, "the dtype uint16 is not", herring.allreduce, np.ones(3, np.uint16), "sum")
    raises(bad, "op is None; it must be one of 'sum', 'average'", herring.allreduce, np.ones(3),
           None)
    raises(bad, "timeout is '5 parsecs'; it must be more than 0 seconds", herring.allreduce,
           np.ones(3), timeout="5 parsecs")
    for timeout in ("5s", "450ms", "2m", 5, 0.5, np.float32(3), datetime.timedelta(seconds=5)):
        herring.barrier(timeout=timeout)
        herring.new_group([0], timeout=timeout)
        herring.allreduce_async(np.ones(3)).wait(timeout)
    raises(bad, "which is this rank itself", herring.send, np.ones(3), 0)
    for name, hint in (
        ("get_rank", "use rank()"), ("get_world_size", "use size()"),
        ("all_reduce", "use allreduce(array)"), ("Average", "op='average'"),
        ("allreducee", "did you mean 'allreduce'?"),
        ("DistributedDataParallel", "it is in herring.torch"),
    ):
        raises(AttributeError, hint, getattr, herring, name)
        assert not hasattr(herring, name)
    if torch is not None:
        import herring.torch

        ops = torch.distributed.ReduceOp
        for op, wanted in ((ops.SUM, 2), (ops.AVG, 2), (ops(ops.MAX), 2), (ops.PRODUCT, 2)):
            assert herring.torch.allreduce(torch.full((3,), 2.0), op).tolist() == [wanted] * 3
        raises(bad, "RedOpType.BAND", herring.torch.allreduce, torch.ones(3), ops.BAND)
        raises(bad, "the dtype complex64 is not", herring.torch.allreduce,
               torch.ones(3, dtype=torch.complex64))
        raises(AttributeError, "it is in herring itself", getattr, herring.torch, "send")
        raises(AttributeError, "use rank()", getattr, herring.torch, "get_rank")
    print("in words")
"""


@pytest.mark.timeout(100)
def test_usual_mistakes_say_what_to_do() -> None:
    assert "in words" in expect_success(run_job(["-n", "1"], USUAL, 80))


@pytest.mark.timeout(60)
def test_adapter_for_torch_says_what_to_install() -> None:
    script = "import sys; sys.modules['torch'] = None; import herring.torch"
    run = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert "herring.torch needs PyTorch 2.1 or newer: pip install" in run.stderr, run.stderr
