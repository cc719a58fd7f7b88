"""Tests parts of herring.torch that need no job."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import inspect
import threading
import types
import warnings
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import pytest

torch = pytest.importorskip("torch")

from herring.errors import InvalidArgumentError, ShutdownError  # noqa: E402
from herring.torch import arguments, ddp, engine, layout, state, tensors  # noqa: E402
from herring.torch.backend import hooks, messages, reconfiguring, works  # noqa: E402

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
SHAPES = [(), (0,), (1,), (3,), (5, 7), (2, 0, 3), (2, 3, 4)]


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.booleans())),
    st.sampled_from([1, 40, 1 << 20]),
)
@hypothesis.settings(max_examples=100)
def test_flat_bytes_round_trip(kinds, block_bytes):
    given = []
    for index, (dtype, shape, turned) in enumerate(kinds):
        tensor = (torch.arange(torch.Size(shape).numel()) + index).to(dtype).reshape(shape)
        given.append(tensor.t() if turned and tensor.dim() == 2 else tensor)
    packed = tensors.FlatBytes(given, block_bytes)
    packed.pack(given)
    largest = max([block_bytes, *(t.numel() * t.element_size() + 15 for t in given)])
    assert all(len(block) <= largest + 15 for block in packed.blocks)
    copies = [torch.zeros_like(t) for t in given]
    packed.unpack(copies)
    assert all(torch.equal(a, b) for a, b in zip(given, copies))


def test_flat_bytes_writes_through_parameters():
    parameter = torch.nn.Parameter(torch.zeros(3))
    packed = tensors.FlatBytes([parameter])
    packed.pack([torch.ones(3)])
    packed.unpack([parameter])
    assert parameter.tolist() == [1.0] * 3
    assert parameter.requires_grad


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, None),
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
        ("float16", "float16"),
        ("float32", "float32"),
        ("fp8", "fp8"),
        (torch.float8_e4m3fn, "fp8_e4m3"),
        (torch.float8_e5m2, "fp8_e5m2"),
        (torch.int8, "int8"),
    ],
)
def test_wire_dtypes(given, name):
    assert tensors.wire_dtype_name(given) == name


@pytest.mark.parametrize("given", ["half", torch.int16, torch.float64, "fp4", 16])
def test_wire_dtypes_refused(given):
    with pytest.raises(InvalidArgumentError, match="it must be None or one of float32, "):
        tensors.wire_dtype_name(given)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ([1.0], "expected a torch.Tensor"),
        (torch.zeros(2, 3).t(), r"not contiguous \(shape \(3, 2\), strides \(1, 3\)\)"),
        (torch.zeros(4)[::2], "not contiguous"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
    ],
)
def test_tensors_refused(tensor, words):
    with pytest.raises(InvalidArgumentError, match=f"broadcast: .*{words}"):
        tensors.require_dense(tensor, "broadcast")


def test_tensors_elsewhere_refused():
    with pytest.raises(InvalidArgumentError, match="meta"):
        tensors.on_host(torch.zeros(2, device="meta"), "allreduce")


class OnGpu(torch.Tensor):
    """A tensor in CPU memory that claims to be on a GPU."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]


def test_each_operation_that_copies_from_a_gpu_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *given, pin_memory, **more: empty(*given, **more))
    tensor = torch.ones(2).as_subclass(OnGpu)
    with pytest.warns(UserWarning) as said:
        for operation in ("gather", "scatter") * 3:
            assert tensors.on_host(tensor, operation).device.type == "cpu"
    assert [str(one.message).split(" copies CUDA tensors to pinned")[0] for one in said] == [
        "herring.torch: gather",
        "herring.torch: scatter",
    ]


def test_descriptions_show_what_must_agree():
    assert tensors.describe("w", torch.zeros(2, 3)) == "w float32 [2, 3]"
    assert tensors.describe("w", torch.zeros(2, 3).t()) == "w float32 [3, 2] strides [1, 3]"
    # Gaps between elements are not part of the layout in which gradients are sent.
    assert tensors.describe("w", torch.zeros(4, 4)[:, :2]) == "w float32 [4, 2]"
    frozen = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16), requires_grad=False)
    assert tensors.describe("w", frozen) == "w bfloat16 [1] frozen"


def test_output_tensors_are_found():
    @dataclasses.dataclass
    class Output:
        loss: torch.Tensor
        more: object

    a, b, c, d = torch.zeros(4).unbind()
    found = list(ddp._tensors(Output(a, {"x": [b, 1, None], "y": (c, {"z": d})})))
    assert [id(t) for t in found] == [id(t) for t in (a, b, c, d)]


def test_the_nodes_of_a_graph_lead_to_its_leaves_once_each():
    assert not list(engine.nodes_below([None]))
    x = torch.nn.Parameter(torch.zeros(3))
    y = (x * 2).exp() + x.exp()
    nodes = list(engine.nodes_below([y.grad_fn]))
    assert len(nodes) == len(set(nodes)) == 5
    assert next(node.variable for node in nodes if hasattr(node, "variable")) is x


def test_optimizer_state_is_taken_apart_and_put_together():
    original = {
        "state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2, 2).t(), "none": None}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
    }
    lifted: list[torch.Tensor] = []
    structure = state._lift(original, lifted)
    assert len(lifted) == 2
    lowered: list[torch.Tensor] = []
    restored = state._lower(structure, lowered, "meta")
    assert all(target.device.type == "cpu" for target in lowered)
    for target, source in zip(lowered, lifted):
        target.copy_(source)
    assert restored["param_groups"] == original["param_groups"]
    assert restored["state"][0]["none"] is None
    assert torch.equal(restored["state"][0]["m"], torch.ones(2, 2))
    assert restored["state"][0]["step"].item() == 3.0


class Complete:
    """An operation that is already complete."""

    counts = ()

    def done(self) -> bool:
        return True

    def wait(self, seconds: float = 0) -> None:
        pass


class Handover:
    """A lock whose first owner continues only after a second owner has released it too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._releases = 0
        self._second = threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._releases += 1
        if self._releases == 2:
            self._second.set()
        self._lock.release()
        assert self._second.wait(600)


def test_a_work_is_finished_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, follows, errors = threading.Event(), threading.Event(), []

    def call_later(*_: object) -> bool:
        follows.set()
        return False

    def then(_: object) -> None:
        entered.set()
        assert follows.wait(600)

    def attempt(call) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    monkeypatch.setattr(works, "call_later", call_later)
    work = works.OperationWork(works.Owner(), [Complete()], [torch.ones(1)], then)
    work._step = Handover()
    waits = threading.Thread(target=attempt, args=(work.wait,))
    waits.start()
    assert entered.wait(600)
    attempt(work.get_future)
    waits.join(600)
    assert errors == []
    assert work.get_future().wait()[0].item() == 1


def test_a_work_writes_behind_what_was_queued_for_its_outputs(monkeypatch) -> None:
    # On a GPU, another thread with other streams may copy the result to the outputs.
    happened = []

    class Moment:
        def __init__(self, outputs) -> None:
            self.number = len(happened)
            happened.append(f"queued for {len(outputs)}")

        def wait(self) -> None:
            happened.append(f"waits for {self.number}")

    monkeypatch.setattr(works.devices, "Moment", Moment)
    outputs = [torch.zeros(1)]

    def step(_):
        happened.append("first step")
        return [Complete()], lambda _: happened.append("writes")

    work = works.OperationWork(works.Owner(), [Complete()], outputs, step)
    assert happened == ["queued for 1"]
    work.wait()
    assert happened[1:] == [
        *("waits for 0", "first step", "queued for 1"),
        *("waits for 0", "writes", "queued for 1"),
        "waits for 6",
    ]


def test_a_message_to_oneself_follows_what_its_other_end_had_queued(monkeypatch) -> None:
    happened = []

    class Moment:
        def __init__(self, tensors) -> None:
            happened.append(f"begun with {tensors[0].tolist()}")

        def wait(self) -> None:
            happened.append("waits")

    monkeypatch.setattr(messages, "Moment", Moment)
    own = messages.Messages(works.Owner(), None, [0], 0)
    limit = datetime.timedelta(seconds=9)
    target = torch.zeros(2)
    sent = own.send(torch.ones(2), 0, 7, limit)
    assert happened == ["begun with [1.0, 1.0]"]
    received = own.receive(target, 0, 7, limit)
    assert happened[1:] == ["waits"]
    assert sent.wait() and received.wait() and target.tolist() == [1.0, 1.0]


class Contended(threading.Condition):
    """A lock that another thread holds first: `other` happens before this thread gets it."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self._other: Callable[[], object] | None = other

    def __enter__(self) -> bool:
        entered = super().__enter__()
        other, self._other = self._other, None
        if other is not None:
            other()
        return entered


def test_no_work_begins_a_step_in_a_group_that_another_thread_is_ending() -> None:
    owner = works.Owner()
    owner._changed = Contended(lambda: owner.end("it was destroyed", 1.0))
    with pytest.raises(ShutdownError, match="it was destroyed"):
        with owner.step():
            pass


def test_of_two_threads_only_one_sets_the_completion_hook() -> None:
    own = hooks.Hooks()
    first: list[object] = []
    own._changed = Contended(lambda: own.on_completion(first.append))
    with pytest.raises(InvalidArgumentError, match="has a completion hook already"):
        own.on_completion(print)
    assert own._completion == first.append


def test_a_message_to_oneself_finds_what_another_thread_has_just_begun() -> None:
    own = messages.Messages(works.Owner(), None, [0], 0)
    limit = datetime.timedelta(seconds=9)
    target = torch.zeros(2)
    own._lock = Contended(lambda: own.receive(target, 0, 7, limit))
    assert own.send(torch.ones(2), 0, 7, limit).wait()
    assert target.tolist() == [1.0, 1.0]


def test_threads_that_ask_at_once_get_the_same_handle() -> None:
    group = types.SimpleNamespace(_store=object(), _process="process", _turn=0, _seat=None)
    ask = reconfiguring.ReconfigurableProcessGroup.get_reconfigure_handle
    others = []
    group._lock = Contended(lambda: others.append(ask(group)))
    try:
        assert [ask(group)] == others
    finally:
        group._seat.close()


def test_a_model_on_several_devices_is_warned_of() -> None:
    def warn(name: str, *places: str) -> None:
        made = object.__new__(layout.Layout)
        made._devices = [torch.device(place) for place in places]
        made.parameters = [types.SimpleNamespace(is_cuda="cuda" in place) for place in places]
        made.order = range(len(places))
        made.options = types.SimpleNamespace(name=name)
        made._warn_of_copies()

    with pytest.warns(UserWarning, match="parameters of 'w1' are on cuda:0 and cuda:1, so torch"):
        warn("w1", "cuda:1", "cuda:0", "cuda:1")
    with pytest.warns(UserWarning, match="parameters of 'w2' are on cpu and cuda:0"):
        warn("w2", "cpu", "cuda:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for places in (("cuda:0", "cuda:0"), ("cpu", "cpu"), ("cpu", "meta")):
            warn("w3", *places)


@pytest.mark.parametrize("operation", ["allgather", "all_to_all"])
def test_no_copy_to_host_memory_inside_a_capture(operation, monkeypatch):
    on_gpu = types.SimpleNamespace(device=torch.device("cuda", 1), is_cuda=True)
    monkeypatch.setattr(tensors, "is_capturing", lambda tensor: tensor is on_gpu)
    with pytest.raises(InvalidArgumentError, match=f"{operation}: the current stream of cuda:1 is"):
        tensors.on_host(on_gpu, operation)
    with pytest.raises(InvalidArgumentError, match="is being captured for a CUDA graph"):
        tensors.FlatBytes([]).pack([on_gpu])


def test_only_the_streams_of_gpus_are_asked_whether_they_are_captured():
    assert not tensors.is_capturing(torch.ones(1))


# What torch's wrapper reads from a model or its tensors, and what becomes of it here.
READ_FROM_MODELS = {
    "_ddp_params_and_buffers_to_ignore": "honoured",
    "_ddp_ignored": "the same, on tensors, for mixed_precision, which is refused",
    "_in_backward_optimizers": "refused when such an optimizer makes its step",
    "_mp_param": "of mixed_precision, which is refused",
    "_former_parameters": "of replicas of DataParallel, which have no parameters",
    "buffer_hook": "of the wrapper itself",
}


def test_what_torchs_wrapper_reads_from_a_model_is_known() -> None:
    """A newer torch that reads more fails here, so that it is honoured or refused."""
    from torch.nn.parallel import distributed

    tree = ast.parse(inspect.getsource(distributed))
    found = {
        call.args[1].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("hasattr", "getattr")
        and isinstance(call.args[1], ast.Constant)
    }
    assert found <= set(READ_FROM_MODELS), found - set(READ_FROM_MODELS)


def test_each_argument_of_torchs_wrapper_is_taken_or_refused() -> None:
    torchs = set(inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters)
    ours = set(inspect.signature(ddp.DistributedDataParallel.__init__).parameters)
    assert torchs - ours <= set(arguments._REFUSED) | arguments._IGNORED
    # What torch's does by other means, a hook of the model or of the wrapper, is refused in words.
    with pytest.raises(InvalidArgumentError, match="mixed_precision"):
        arguments.check_torch_arguments({"mixed_precision": object()})
