"""Calls collectives inside JAX programs on a GPU, and compares training with one process alone."""

import os

import jax
import jax.numpy as jnp
import numpy as np

import herring
import herring.jax as hj
from herring.jax.platforms import implementation

herring.init()
rank, size = herring.rank(), herring.size()
wanted = os.environ.get("JAX_PLATFORMS", "cuda")
assert jax.default_backend() == {"cuda": "gpu"}.get(wanted, wanted), jax.default_backend()
assert implementation() == "ffi"
ROWS, WIDTH = 64, 512


def heavy(x):
    for _ in range(5):
        x = jnp.tanh(x @ x.T / WIDTH) @ x
    return x


@jax.jit
def reduced(x):
    """Queues work before and after the calls, so a missing order shows as a wrong value."""
    busy = heavy(x)
    late = busy - busy + rank
    total = hj.allreduce({"a": late, "b": jnp.full(7, rank, jnp.int32)}, "sum")
    least = hj.allreduce(late + 1, "min")
    return busy, total, least, hj.allgather(late[:2]), hj.broadcast(late, size - 1)


for step in range(6):
    x = jnp.asarray(np.random.default_rng(step).standard_normal((WIDTH, WIDTH)), jnp.float32)
    busy, total, least, gathered, told = reduced(x)
    assert bool(jnp.isfinite(busy).all())
    assert bool((total["a"] == sum(range(size))).all()), (step, total["a"][:2, :2])
    assert bool((total["b"] == sum(range(size))).all())
    assert bool((least == 1).all())
    assert gathered.shape == (2 * size, WIDTH)
    assert bool((gathered[:, 0] == jnp.repeat(jnp.arange(size), 2)).all())
    assert bool((told == size - 1).all())

# Outside of a program, and more bytes than a buffer has.
for dtype in ("float32", "bfloat16", "float16", "int64" if jax.config.jax_enable_x64 else "int32"):
    found = hj.allreduce(jnp.full(1_000_003, rank + 1, dtype), "sum")
    assert bool((found == sum(range(1, size + 1))).all()), dtype
part = hj.reduce_scatter(jnp.arange(4 * size, dtype=jnp.float32), "sum")
assert bool((part == size * (4 * rank + jnp.arange(4))).all())


def loss_of(parameters, inputs):
    hidden = jnp.tanh(inputs @ parameters["first"])
    return jnp.square(hidden @ parameters["last"] - 1).mean()


def parameters_of(seed):
    random = np.random.default_rng(seed)
    shapes = {"first": (32, WIDTH), "last": (WIDTH, 4)}
    return {k: jnp.asarray(random.standard_normal(v) / 8, jnp.float32) for k, v in shapes.items()}


def train(parameters, mean, rows):
    @jax.jit
    def step(parameters, inputs):
        gradients = mean(jax.grad(loss_of)(parameters, inputs))
        return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients)

    for number in range(30):
        inputs = np.random.default_rng(number).standard_normal((ROWS * size, 32))
        parameters = step(parameters, jnp.asarray(inputs[rows], jnp.float32))
    return parameters


mine = train(hj.broadcast(parameters_of(rank)), hj.allreduce, slice(rank * ROWS, (rank + 1) * ROWS))
with jax.default_matmul_precision("highest"):
    alone = train(parameters_of(0), lambda one: one, slice(None))
for key, value in mine.items():
    digests = herring.allgather_object(np.asarray(value).tobytes())
    assert all(one == digests[0] for one in digests), key
    assert np.allclose(value, alone[key], atol=2e-2), float(jnp.abs(value - alone[key]).max())

# An error of one rank is an error on all of them.
if size > 1:
    try:
        jax.block_until_ready(hj.allreduce(jnp.ones(3 + (rank == 1)), "sum", name="other"))
    except (herring.HerringError, jax.errors.JaxRuntimeError) as error:
        assert "other" in str(error), error
    else:
        raise AssertionError("no error")
print(f"rank {rank} is done", flush=True)
herring.shutdown()
