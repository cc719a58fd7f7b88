"""Tests herring.jax in real jobs: collectives in compiled programs, by handler and by callback."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from cases import check, listed
from jax_jobs import TWO, run
from jobs import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
OF_ROUNDS = "jax_rounds_cases.py"


@pytest.mark.parametrize("case", listed(OF_ROUNDS))
def test_partial_rounds(case: str) -> None:
    check(OF_ROUNDS, "three-nodes", case)


@pytest.mark.parametrize("implementation", ["ffi", "callback"])
@pytest.mark.parametrize("layout", ["alone", "one-node", "colocated-servers", "dedicated-servers"])
def test_collectives_of_trees(layout: str, implementation: str) -> None:
    script = """
herring.init()
r, n = rank(), size()

def tree(r):
    return {
        "w": np.arange(35, dtype=np.float32).reshape(7, 5) * (r + 1),
        "large": np.full((6, 30_011), r + 1, np.float32),
        "half": np.full(9, r + 1, np.float16),
        "b": [np.arange(8) + r, np.array([True, r > 0])],
        "key": np.arange(4, dtype=np.uint32) + r,
        "none": None,
        "empty": np.zeros((0, 3), np.float32),
    }

def floats(r):
    return {name: tree(r)[name] for name in ("w", "large", "half", "empty")}

@jax.jit
def program(mine, some):
    brain = jnp.full((4, 3), 1 + r, jnp.bfloat16)
    return (hj.broadcast(mine, n - 1), hj.allgather(mine), hj.allreduce(some), hj.allreduce(brain),
            hj.reduce_scatter(some, "sum"), hj.allreduce(some["w"], "max", prescale=2.0),
            hj.allreduce(mine["b"], "sum"), hj.allreduce(some["w"], "product"),
            hj.allreduce(mine["b"], "min"), hj.allreduce({}))

def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)

def total(trees, combine=sum):
    return jax.tree.map(lambda *leaves: combine(np.asarray(l) for l in leaves), *trees)

def part(array):
    even, more = divmod(len(array), n)
    first = r * even + min(r, more)
    return array[first : first + even + (r < more)]

for _ in range(3):
    (moved, gathered, mean, brain, mine, largest, counts, product, least,
     nothing) = program(tree(r), floats(r))
    everybody = [floats(other) for other in range(n)]
    same(moved, tree(n - 1))
    same(gathered, jax.tree.map(lambda *l: np.concatenate(l), *[tree(o) for o in range(n)]))
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e / n, rtol=1e-6),
                 {k: v for k, v in mean.items() if k != "half"},
                 {k: v for k, v in total(everybody).items() if k != "half"})
    assert mean["half"].dtype == np.float16 and float(mean["half"][0]) == (n + 1) / 2
    assert brain.dtype == jnp.bfloat16 and float(brain[3, 2]) == (n + 1) / 2
    same(mine, jax.tree.map(part, total(everybody)))
    same(largest, everybody[-1]["w"] * 2)
    same(counts[0], sum(tree(o)["b"][0] for o in range(n)))
    same(counts[1], [True, n > 1])
    same(least[0], tree(0)["b"][0])
    same(product, np.prod([e["w"] for e in everybody], 0))
    assert nothing == {}
    same(hj.allreduce(jnp.float32(r), "sum"), np.float32(n * (n - 1) / 2))  # not in a program
"""
    run(LAYOUTS[layout], script, HERRING_JAX_IMPL=implementation)


@pytest.mark.parametrize("implementation", ["ffi", "callback"])
def test_steps_loops_and_derivatives(implementation: str) -> None:
    script = """
herring.init()
r = rank()

def loss(w, x):
    return jnp.mean((x @ w) ** 2)

@jax.jit
def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * hj.allreduce(gradient), hj.allreduce(value)

data = jnp.asarray(np.random.RandomState(0).randn(16, 4), jnp.float32)
w = alone = jnp.ones((4, 2))
for _ in range(5):
    w, value = step(w, data[8 * r : 8 * r + 8])
    alone = alone - 0.1 * jax.grad(loss)(alone, data)
np.testing.assert_allclose(w, alone, rtol=1e-5)
digests = herring.allgather_object(hashlib.sha256(np.asarray(w).tobytes()).hexdigest())
assert digests[0] == digests[1]

@jax.jit
def loop(carry, values):
    def body(carry, value):
        total = hj.allreduce(value + carry, "sum")
        return total, hj.allreduce(value, "max")
    return jax.lax.scan(body, carry, values)

carry, largest = loop(jnp.float32(r), jnp.arange(3.0) + r)
assert float(carry) == 19.0, carry
assert largest.tolist() == [1.0, 2.0, 3.0]

while_loop = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda i, x: hj.allreduce(x, "sum"), x))
assert float(while_loop(jnp.float32(1))) == 16.0

# The gradient of the sum of all ranks' losses.
x = jnp.arange(3.0) + r
gradient = jax.jit(jax.grad(lambda x: ((r + 1) * hj.allreduce(x, "sum") ** 2).sum()))(x)
np.testing.assert_array_equal(gradient, 2 * 3 * (2 * np.arange(3) + 1))
"""
    run(TWO, script, HERRING_JAX_IMPL=implementation)


@pytest.mark.parametrize("implementation", ["ffi", "callback"])
def test_checkpoints_keep_the_results_of_collectives(implementation: str) -> None:
    script = """
herring.init()
r = rank()

def layer(w, x):
    best = hj.allreduce(jax.lax.stop_gradient(x), "max")
    return jnp.sin(hj.allreduce(jnp.tanh(x @ w), "sum")) * best

def inner(w, x):
    return jax.jit(layer)(w, x) + jax.lax.cond(w.size > 4, layer, lambda w, x: x, w, x)

def layers(function):
    return lambda w, x: jnp.sum(function(w, function(w, x)) ** 2)

def scanned(function):
    return lambda w, x: jnp.sum(jax.lax.scan(lambda x, _: (function(w, x), 0), x, length=3)[0])

w = jnp.ones((3, 3)) * 0.1 * (r + 1)
x = jnp.arange(6.0).reshape(2, 3) / 6 + r
jit, checkpoint = (lambda loss: jax.jit(jax.grad(loss))), jax.checkpoint
dots = jax.checkpoint_policies.dots_saveable
for plain, changed in (
    (layers(layer), layers(checkpoint(layer))),
    (layers(layer), layers(checkpoint(layer, policy=dots))),
    (layers(inner), layers(checkpoint(inner))),
    (layers(layer), checkpoint(layers(checkpoint(layer)))),
    (scanned(layer), scanned(checkpoint(layer, prevent_cse=False))),
    (scanned(layer), checkpoint(scanned(layer))),
):
    np.testing.assert_allclose(jit(changed)(w, x), jit(plain)(w, x), rtol=1e-5)
    starts = [jit(loss).lower(w, x).as_text().count("herring_start") for loss in (plain, changed)]
    assert starts[0] == starts[1], starts
np.testing.assert_allclose(  # outside of programs
    jax.grad(layers(checkpoint(layer)))(w, x), jit(layers(layer))(w, x), rtol=1e-5)
"""
    run(TWO, script, HERRING_JAX_IMPL=implementation)


def test_dtypes_of_few_bits_are_moved() -> None:
    script = """
os.environ["HERRING_JAX_IMPL"] = "callback" if rank_of_job else "ffi"
herring.init()
r = rank()
names = ("float8_e4m3fn", "float8_e5m2", "int4", "uint4", "float4_e2m1fn")
for name in (one for one in names if hasattr(jnp, one)):
    dtype = getattr(jnp, name)
    values = jnp.array([[1, 2], [3, 0]], jnp.int32) + r
    tree = {"few": values.astype(dtype), "wide": values}
    for call in (hj.broadcast, jax.jit(hj.broadcast)):
        found = call(tree)["few"]
        assert found.dtype == dtype and (found.astype(int) == values - r).all(), (name, found)
    for call in (hj.allgather, jax.jit(hj.allgather)):
        found = call(tree)["few"]
        assert found.dtype == dtype and (found.astype(int)[:2] == values - r).all(), (name, found)
        assert (found.astype(int)[2:] == values - r + 1).all(), (name, found)
raises(herring.InvalidArgumentError, "float8_e5m2 is not", hj.allreduce, jnp.ones(3, "float8_e5m2"))
"""
    run(TWO, "rank_of_job = int(os.environ['HERRING_RANK'])" + script)


def test_names_of_calls_outside_of_programs_cost_no_compilation() -> None:
    script = """
import logging
herring.init()
compiled = []
handler = logging.Handler()
handler.emit = lambda record: compiled.append(record.getMessage())
logging.getLogger("jax").addHandler(handler)
jax.config.update("jax_log_compiles", True)
x = jnp.ones((4, 2)) * (rank() + 1)

def calls(name):
    total = hj.allreduce(x, "sum", name=name)
    return total, hj.broadcast(x, 1, name=name), hj.allgather(x, name=name)

calls("first")
compiled.clear()
for i in range(3):
    total, one, all_of_them = calls(f"new.{i}")
    assert isinstance(total, jax.Array)
    assert (np.asarray(total) == 3).all() and (np.asarray(one) == 2).all()
    assert all_of_them.shape == (8, 2)
assert not compiled, compiled
gradient = jax.grad(lambda x: hj.allreduce(x * x, "sum").sum())(x)
assert np.allclose(gradient, 2 * x * 2)
captured = jax.jit(lambda: hj.allreduce(x, "sum"))  # a program, although `x` is no value of it
assert (captured() == 3).all()
"""
    run(TWO, script)


def test_ranks_with_handler_and_callback_meet() -> None:
    script = """
os.environ["HERRING_JAX_IMPL"] = ["ffi", "callback"][int(os.environ["HERRING_RANK"])]
herring.init()
program = jax.jit(lambda x: (hj.allreduce(x, "sum"), hj.allgather(x)))
for _ in range(3):
    total, both = program(jnp.full(5, rank() + 1.0))
    assert total.tolist() == [3.0] * 5 and both.tolist() == [1.0] * 5 + [2.0] * 5
"""
    run(TWO, script)


@pytest.mark.parametrize("count", [4, 1 << 18])
def test_order_of_execution_does_not_matter(count: int) -> None:
    """XLA's order of execution depends on shapes and on the order of a program's results."""
    script = f"""
herring.init(timeout=600)
r, many, count = rank(), 16, {count}

def in_order_of_rank(found):
    return found if r == 0 else found[::-1]

@jax.jit
def program(arrays):
    return in_order_of_rank(
        [hj.allreduce(arrays[i] * (i + 1), "sum", name=f"array {{i}}") for i in range(many)])

@jax.jit
def lines(arrays):  # without names: by their place, and how often it was passed
    return in_order_of_rank(
        [hj.allreduce(array * (i + 1), "sum") for i, array in enumerate(arrays)])

@jax.jit
def consumed(arrays):  # memory of results is used again
    return in_order_of_rank(
        [hj.allreduce(array * (i + 1), "sum").sum() for i, array in enumerate(arrays)])

for _ in range(4):
    arrays = [jnp.full(count, r + 1.0)] * many
    for which in (program, lines):
        found = in_order_of_rank(which(arrays))
        assert [float(one[-1]) for one in found] == [3.0 * (i + 1) for i in range(many)]
    sums = in_order_of_rank(consumed(arrays))
    assert np.allclose(sums, [3.0 * (i + 1) * count for i in range(many)])

def statistics(x, y):
    return (hj.allreduce(x.sum(0), "sum", name="a"),
            hj.allreduce((x * y).sum(0), "sum", name="b"))

def derivative(x, y):
    def loss(w):
        return hj.allreduce((x * w).sum(), "sum") + hj.allreduce((y * w * w).sum(), "sum")
    value, gradient = jax.value_and_grad(loss)(jnp.ones(16))
    return hj.allreduce(value, "sum"), hj.allreduce(gradient, "sum"), hj.allreduce(x.sum())

for rows in (32, 100, 500, 7):  # in the last batch of one rank
    x = jnp.ones(((32, rows)[r], 16))
    for which in (statistics, derivative):
        jax.block_until_ready(jax.jit(which)(x, x))
"""
    run(TWO, script)


def test_averages_are_on_their_way_during_the_backward_pass() -> None:
    # Rank 1 waits for the average of each layer before it begins the next. It would wait forever if
    # rank 0 did not continue its backward pass meanwhile.
    script = """
from herring.jax import collectives
from herring.jax.calls import Call, described, execute
from herring.jax.keys import key_of
from herring.jax.order import last_token

herring.init(timeout=600)
collectives._BUCKET_BYTES = 1
weights = [jnp.full((64, 64), 0.01 * (i + 1)) for i in range(6)]

def loss(weights):
    value = jnp.ones((8, 64))
    for weight in weights:
        value = jnp.tanh(value @ weight)
    return jnp.sum(value)

gradients = jax.jit(jax.grad(loss))(weights)
for _ in range(3):
    if rank() == 0:
        step = jax.jit(lambda weights: hj.allreduce(jax.grad(loss)(weights), name="g"))
        found = step(weights)
    else:
        key = key_of("allreduce", "g", weights)
        found = []
        for i in range(6):
            name = f"{key}/{5 - i}" if i < 5 else key
            shape = jax.ShapeDtypeStruct((64, 64), gradients[i].dtype)
            part = f"{described(gradients[i : i + 1])}; part {6 - i} of 6"
            call = Call("allreduce", name, op="average", agreement=part)
            found += execute(call, last_token(), gradients[i : i + 1], [shape])[1:]
    for one, expected in zip(found, gradients):
        assert jnp.allclose(one, expected, rtol=1e-5), (one, expected)
"""
    run(TWO, script)


def test_programs_that_look_alike() -> None:
    script = """
herring.init()
r = rank()
x = jnp.full(1 << 18, r + 1.0)
first = jax.jit(lambda x: hj.allreduce(x, "sum"))
second = jax.jit(lambda x: hj.allreduce(x * 10, "sum"))
found = [one(x) for _ in range(4) for one in (first, second)]  # all on their way at once
assert [float(one[0]) for one in found] == [3.0, 30.0] * 4
if r == 1:
    jax.clear_caches()  # one rank compiles again
assert float(first(x)[0]) == 3.0
uneven = jax.jit(lambda x: hj.allreduce(x.sum(0), "sum"))
for rows in ((4, 4), (2, 3), (4, 1), (4, 4)):  # one rank has traced what another has not
    assert uneven(jnp.ones((rows[r], 3))).tolist() == [float(sum(rows))] * 3
donating = jax.jit(lambda x: hj.allreduce(x, "sum"), donate_argnums=0)
y = jnp.copy(x)
for i in range(4):
    y = donating(y)
assert float(y[7]) == 24.0
inner = jax.jit(lambda x: hj.allreduce(x, "sum"))
chain = jax.jit(lambda x: inner(inner(x) + inner(jnp.float32(r)) * 0))
assert float(chain(x)[0]) == 6.0
"""
    run(TWO, script)


def test_groups_and_jobs_in_turn() -> None:
    script = """
herring.init()
r = rank()
x = jnp.full(5, r + 1.0)
halves = herring.new_group([0, 1] if r < 2 else [2, 3])
rows = herring.new_group([r % 2, r % 2 + 2])

@jax.jit
def program(x):
    return (hj.allreduce(x, "sum", group=halves), hj.allgather(x[:1], group=rows),
            hj.broadcast(x, 1, group=halves), hj.allreduce(x, "sum"))

for _ in range(3):
    half, row, second, all_of_them = program(x)
    assert float(half[0]) == (3.0 if r < 2 else 7.0)
    assert row.tolist() == [r % 2 + 1.0, r % 2 + 3.0]
    assert float(second[0]) == (2.0 if r < 2 else 4.0) and float(all_of_them[0]) == 10.0
halves.destroy()
fails("Error", "of group 'group.0'", program, x)  # another member may have left it before
"""
    run(["-n", "4"], script)
    script = """
herring.init()
program = jax.jit(lambda x: hj.allreduce(x, "sum"))
grouped = jax.jit(lambda x, g=herring.new_group([0, 1]): hj.allreduce(x, "sum", group=g))
assert float(program(jnp.ones(3))[0]) == float(grouped(jnp.ones(3))[0]) == 2.0
herring.shutdown()
fails("ShutdownError", "(call init())", program, jnp.ones(3))
herring.init()
assert float(program(jnp.ones(3))[0]) == 2.0  # in the next job
fails("ShutdownError", "a job that has ended", grouped, jnp.ones(3))
"""
    run(TWO, script)


def test_joins_between_programs() -> None:
    """Ranks that executed a program a different number of times meet again after a join."""
    script = """
herring.init()
r = rank()
rows = [herring.new_group([0, 1]), herring.new_group([2])][r // 2]
program = jax.jit(lambda x: hj.allreduce(x, "sum"))
of_row = jax.jit(lambda x: hj.allreduce(x, "sum", group=rows))
for again in range(2):
    for i in range(r + 1):
        there = [other for other in range(3) if other >= i]
        assert program(jnp.full(5, r + 1.0)).tolist() == [sum(there) + float(len(there))] * 5
    assert herring.join() == 2
    assert program(jnp.full(5, r + 1.0)).tolist() == [6.0] * 5
    if r == 0 and again == 0:
        of_row(jnp.ones(3)).block_until_ready()  # rank 1 has joined the row already
    if r < 2:
        herring.join(group=rows)
        assert of_row(jnp.ones(3)).tolist() == [2.0] * 3
"""
    run(["-n", "3", "--nodes", "3"], script, HERRING_TIMEOUT="600")


def test_an_inner_program_is_not_traced_again() -> None:
    """One rank traces the outer program again and finds the inner program in JAX's cache."""
    script = """
herring.init(timeout=600)
r = rank()
def mean(x):
    return hj.allreduce(x, "sum")
inner = jax.jit(mean)
step = jax.jit(lambda x, rows: inner(x) + mean(x * 10) + 0 * rows.sum())
for rows in (3, 3, (4, 3)[r], 3):
    assert step(jnp.full(2, r + 1.0), jnp.ones(rows)).tolist() == [33.0] * 2
"""
    run(TWO, script)


def test_keras_fits_alike() -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    script = """
import keras
import herring.keras
herring.init()
r = rank()
keras.utils.set_random_seed(0)
dense = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
model = keras.Sequential([keras.layers.Input((8,)), *dense])
model.compile(herring.keras.DistributedOptimizer(keras.optimizers.Adam(1e-2)), "mse")
inputs = np.random.RandomState(r).randn(128, 8).astype(np.float32)
past = model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=32, epochs=3, verbose=0)
assert past.history["loss"][-1] < past.history["loss"][0]
weights = b"".join(np.asarray(one) for one in model.get_weights())
digests = herring.allgather_object(hashlib.sha256(weights).hexdigest())
assert digests[0] == digests[1]
"""
    run(TWO, script, KERAS_BACKEND="jax")


def test_example_equals_a_single_process() -> None:
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--timeout", "500"]
    command += ["--", sys.executable, str(ROOT / "examples" / "jax_step.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal on all ranks" in done.stdout
    assert "equal to one process" in done.stdout


def test_programs_for_gpus_have_the_calls_of_the_native_handler() -> None:
    script = """
herring.init()

def program(x):
    return hj.allreduce(x), hj.allgather(x), hj.reduce_scatter(x), hj.broadcast(x)

lowered = jax.jit(program).trace(jnp.ones((4, 3))).lower(lowering_platforms=("cuda",))
text = lowered.as_text()
assert text.count("@herring_start") == 4 and text.count("@herring_finish") == 4, text
from jaxlib import xla_client
registered = xla_client._custom_callback["CUDA"]  # what a plugin for GPUs takes
assert {name for name, *_ in registered} >= {"herring_start", "herring_finish"}
herring.shutdown()
"""
    run(["-n", "1"], script)


def test_branches_that_differ_end_as_a_deadlock() -> None:
    """XLA's threads wait in different calls. Its alarm ends two minutes after it compiled."""
    script = """
herring.init()
branches = [lambda x, name=name: hj.allreduce(x, name=name) for name in "ab"]
program = jax.jit(lambda which, x: jax.lax.switch(which, branches, x))
fails("TimeoutError", "deadlock: all 2 ranks wait", program, rank(), jnp.ones(4))
print("out", rank(), flush=True)
"""
    output = run(TWO, script, HERRING_TIMEOUT="280")
    assert "out 0" in output and "out 1" in output, output
