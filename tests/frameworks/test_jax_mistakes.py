"""Mistakes with herring.jax, and jobs that end early: every rank learns what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jax_jobs import SETUP, TWO, run
from jobs import run_job


def test_swapped_calls_outside_of_programs_wait_and_name_their_lines() -> None:
    script = """
herring.init()
r = rank()
x = jnp.full(3, r + 1.0)
limit = [600]
def first(): return hj.allreduce(x, "sum", timeout=limit[0])
def second(): return hj.allreduce(x * 10, "sum", timeout=limit[0])
def place(call): return f":{call.__code__.co_firstlineno}."
for _ in range(3):  # the same line meets the same line
    assert [float(call()[0]) for call in (first, second)] == [3.0, 30.0]
mine, theirs = (second, first) if r else (first, second)
limit[0] = 6
try:
    mine()
except herring.TimeoutError as error:
    assert "jax.allreduce.eager." in str(error) and place(mine) in str(error), str(error)
    print("named", place(theirs) in str(error), flush=True)
else:
    raise AssertionError("swapped calls met")
if r == 0:
    y = hj.allreduce(x, "sum", name="both")
else:
    y = hj.allreduce(x, "sum", name="both")
assert float(y[0]) == 3.0
"""
    output = run(TWO, script, HERRING_WARN_AFTER="1")
    # The rank whose timeout comes first finds the other one waiting in the other line.
    assert "named True" in output


def test_one_place_in_flight_twice_is_an_error() -> None:
    script = """
import threading
from herring import _core
from herring.arrays.runtime import job
from support import until
herring.init()

def call():  # as XLA may call it from two of its threads
    array, result = np.ones(3, np.float32), np.zeros(3, np.float32)
    described = [[(one.view(np.uint8), "float32", 4, (3,))] for one in (array, result)]
    _core.jax.run("allreduce", "key", "sum", 0, "", 0, 1.0, 1.0, 0.0, "", *described)
    return result.tolist()

if rank() == 0:
    found = []
    first = threading.Thread(target=lambda: found.append(call()))
    first.start()
    until(lambda: job().activity()["in_flight"])
    raises(herring.InvalidArgumentError, "in flight", call)
    herring.barrier()
    first.join()
    assert found == [[2.0] * 3]
else:
    herring.barrier()
    assert call() == [2.0] * 3
    raises(herring.InvalidArgumentError, "in flight", call)  # rank 0 has said so
assert call() == [2.0] * 3
"""
    run(TWO, script)


def test_ranks_that_disagree_in_dtypes_and_dimensions() -> None:
    script = """
herring.init()
r = rank()
mixed = jnp.ones(3, jnp.float16 if r else jnp.float32)
for kind in ("allgather", "allreduce", "broadcast", "reduce_scatter"):
    call = getattr(hj, kind)
    text = f"rank 1: {kind} of float16 [3]"
    raises(herring.MismatchError, text, lambda: call(mixed, timeout=600))
    raises(herring.MismatchError, text, lambda: call(mixed, name="mixed", timeout=600))
    fails("MismatchError", text, jax.jit(lambda x: call(x, name="traced", timeout=600)), mixed)
    flat = jnp.ones((2, 3) if r else 6)
    raises(herring.MismatchError, f"{kind} of float32 [6]", lambda: call(flat, timeout=600))
    call(jnp.ones(3), name="mixed", timeout=600)  # what follows meets
# Leaves that travel in several parts, of which one rank has more.
many = [jnp.ones(3, jnp.float16 if r else jnp.float32), jnp.ones(2), jnp.ones(2, jnp.float16)]
more = [jnp.ones(3), *([jnp.ones(2, jnp.float16)] if r else []), jnp.ones(2)]
for tree in (many, more, more[: 2 + r]):
    raises(herring.MismatchError, "allreduce of float", lambda: hj.allreduce(tree, timeout=600))
# A rank that refuses what it is given says so to the others.
mixed = jnp.ones(3, jnp.int32 if r else jnp.float32)
for call in (hj.allreduce, hj.reduce_scatter):
    refused = "int32 cannot be averaged"
    raises(herring.InvalidArgumentError, refused, lambda: call(mixed, timeout=600))
    raises(herring.InvalidArgumentError, refused, lambda: call(mixed, name="mixed", timeout=600))
    call(jnp.ones(3), name="mixed", timeout=600)
"""
    run(TWO, script)


def test_disagreements_and_wrong_arguments() -> None:
    script = """
herring.init()
r = rank()
fails("MismatchError", "rank 1: allreduce of float32 [4]", jax.jit(hj.allreduce), jnp.ones(3 + r))
turned = jnp.ones((2, 3) if r else (3, 2))
raises(herring.MismatchError, "rank 0: allreduce of float32 [3, 2]", hj.allreduce, turned)
raises(herring.MismatchError, "rank 1: allgather of float32 [2, 3]", hj.allgather, turned)
raises(herring.MismatchError, "rank 1: allgather of float32 [3]", hj.allgather, jnp.ones(2 + r))
raises(herring.MismatchError, "rank 1: broadcast of float32 [2, 3], root 0", hj.broadcast, turned)
# A leaf may be empty on all ranks only.
some, none = jnp.ones((2 * r, 3)), jnp.ones((0, 3))
for kind in ("allgather", "allreduce", "broadcast", "reduce_scatter"):
    call = getattr(hj, kind)
    text = f"rank 0: {kind} of float32 [0, 3]"
    raises(herring.MismatchError, text, lambda: call(some, name="some", timeout=600))
    fails("MismatchError", text, jax.jit(lambda x: call(x, timeout=600)), some)
    pair = {"some": some, "whole": jnp.ones((2, 3), jnp.float16)}
    for lists in (call, jax.jit(call)):
        assert jax.tree.map(jnp.shape, lists([none, none])) == [(0, 3), (0, 3)]
    if kind != "allreduce":  # Its leaves of one dtype are a call of their own.
        raises(herring.MismatchError, "[0, 3]", lambda: call(pair, name="pair", timeout=600))
wrong = herring.InvalidArgumentError
for call in (hj.allreduce, jax.jit(hj.allreduce)):
    raises(wrong, "jax.vmap", jax.vmap(call), jnp.ones((2, 3)))
raises(wrong, "jax.vmap", jax.vmap(hj.allgather), jnp.ones((2, 3)))
raises(wrong, "int32 cannot be averaged", hj.allreduce, jnp.arange(3))
raises(wrong, "uint32 is not supported", hj.allreduce, jnp.arange(3, dtype=jnp.uint32), "sum")
raises(wrong, "op is 'mean'", hj.allreduce, jnp.ones(3), "mean")
raises(wrong, "one dimension", hj.allgather, jnp.float32(1))
raises(wrong, "key_data", hj.broadcast, jax.random.key(0))
raises(wrong, "a leaf is not an array", hj.broadcast, ["text"])
raises(wrong, "ranks are 0 to 1", hj.broadcast, jnp.ones(3), 2)
raises(wrong, "timeout is -1", lambda: hj.allreduce(jnp.ones(3), timeout=-1))
raises(wrong, "characters", lambda: hj.allreduce(jnp.ones(3), name="n" * 300))
raises(wrong, "herring.Group", lambda: hj.allreduce(jnp.ones(3), group=1))
os.environ["HERRING_JAX_IMPL"] = "mpi"
raises(herring.ConfigurationError, "HERRING_JAX_IMPL=mpi", hj.allreduce, jnp.ones(3))
del os.environ["HERRING_JAX_IMPL"]
late = jax.jit(lambda x: hj.allreduce(x, timeout="2s"))
if r == 0:
    fails("TimeoutError", "rank 1", late, jnp.ones(3))
herring.barrier()
assert hj.allreduce(jnp.ones(3)).tolist() == [1.0] * 3  # nothing of that ends the job
"""
    run(TWO, script)


# An effect that JAX cannot see is what JAX before 0.8 makes of every collective.
def test_a_version_of_jax_that_would_repeat_collectives_is_refused() -> None:
    script = """
import types
from herring.jax import checkpoints
herring.init()
unseen = types.SimpleNamespace(effects=frozenset())
checkpoints.jax = types.SimpleNamespace(**{**vars(jax), "make_jaxpr": lambda _: lambda _: unseen})
x = jnp.ones(3)
loss = lambda x: hj.allreduce(x * x, "sum").sum()
raises(herring.InvalidArgumentError, "jax.checkpoint", jax.grad(jax.checkpoint(loss)), x)
raises(herring.InvalidArgumentError, "0.8 or newer", jax.jit(jax.checkpoint(hj.broadcast)), x)
assert jax.jit(jax.grad(loss))(x).tolist() == [4.0] * 3
"""
    run(TWO, script)


def test_several_devices_in_a_process() -> None:
    script = """
herring.init()
raises(herring.InvalidArgumentError, "2 devices", jax.jit(hj.allreduce), jnp.ones(3))
"""
    run(["-n", "1"], script, XLA_FLAGS="--xla_force_host_platform_device_count=2")


@pytest.mark.parametrize("implementation", ["ffi", "callback"])
def test_death_of_a_rank(implementation: str, tmp_path: Path) -> None:
    """All timeouts are longer than the job may take, so only news of the death ends the wait."""
    script = (
        SETUP
        + """
from support import meet_outside, stay_until_all_know
herring.init()
program = jax.jit(lambda x: hj.allreduce(hj.allreduce(x) + 1))
program(jnp.ones(100_000)).block_until_ready()
herring.barrier()
meet_outside(rank(), range(3))
if rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
fails("PeerLostError", "rank 1", program, jnp.ones(100_000))
raises(herring.PeerLostError, "rank 1", hj.allreduce, jnp.ones(3))
print("has learned of it", flush=True)
stay_until_all_know(rank(), [0, 2])
"""
    )
    done = run_job(
        ["-n", "3", "--keep-going"],
        script,
        JAX_PLATFORMS="cpu",
        HERRING_JAX_IMPL=implementation,
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
        FOLDER=str(tmp_path),
    )
    assert done.stdout.count("has learned of it") == 2, done.stdout[-4000:]


def test_the_last_program_ends_before_its_process(tmp_path: Path) -> None:
    """A script that reads no results ends early, but other ranks may need its last calls."""
    script = """
import atexit
from support import tell, told
herring.init()
atexit.register(tell, f"rank {rank()} is at its end")
program = jax.jit(lambda x: hj.allreduce(jnp.tanh(x), "sum") * 2)
x = jnp.ones(1 << 20)
program(x).block_until_ready()
herring.barrier()
if rank() == 1:
    last = program(x)
else:
    told("rank 1 is at its end")
    assert np.isclose(float(program(x)[0]), 4 * np.tanh(1.0))
    print("with it")
"""
    assert "with it" in run(TWO, script, FOLDER=str(tmp_path))


def test_shutdown_with_a_call_in_flight(tmp_path: Path) -> None:
    script = """
import threading
from herring.arrays.runtime import job
from support import tell, told, until
herring.init()
program = jax.jit(lambda x: hj.allreduce(x, "sum") + 1)
program(jnp.ones(1 << 18)).block_until_ready()
if rank() == 0:
    waiting = threading.Thread(
        target=lambda: fails("ShutdownError", "", program, jnp.ones(1 << 18)))
    waiting.start()
    until(lambda: job().activity()["in_flight"])
    herring.shutdown()
    waiting.join()
    print("told")
    tell("over")
else:
    told("over")
"""
    assert "told" in run(TWO, script, FOLDER=str(tmp_path))


def test_import_without_jax() -> None:
    script = """
import sys
import herring, herring.arrays.collectives
assert not {"jax", "optax"} & {*sys.modules}
sys.modules["jax"] = None
try:
    import herring.jax
except ImportError as error:
    assert "pip install" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], timeout=600, check=True)


# A fake device that claims to be a GPU takes the place of a real one.
def test_where_the_handler_cannot_be_used_is_said_once() -> None:
    script = """
import types
from herring.errors import ConfigurationError
from herring.jax import platforms

class Device:
    platform, local_hardware_id = "gpu", 0
    client = types.SimpleNamespace(platform_version=os.environ["VERSION"])

platforms.jax = types.SimpleNamespace(
    default_backend=lambda: os.environ["BACKEND"], local_devices=lambda: [Device()])
os.environ["HERRING_JAX_IMPL"] = "auto"
assert [platforms.implementation() for _ in range(3)] == ["callback"] * 3
os.environ["HERRING_JAX_IMPL"] = "callback"
assert platforms.implementation() == "callback"
os.environ["HERRING_JAX_IMPL"] = "ffi"
raises(ConfigurationError, "HERRING_JAX_IMPL is ffi, which cannot be used here: ",
       platforms.implementation)
"""
    for backend, version, why in (
        ("gpu", "cuda 12080", "no CUDA driver: "),
        ("gpu", "rocm 60000", "there is no handler for gpu devices"),
        ("tpu", "", "there is no handler for gpu devices"),
    ):
        said = run(["-n", "1"], script, BACKEND=backend, VERSION=version)
        line = f"herring.jax: XLA copies arrays of the {backend} to host memory for every call"
        assert said.count(line) == 1 and why in said, said
