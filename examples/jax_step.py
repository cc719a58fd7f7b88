"""Trains a small network with JAX and optax; each rank uses its own part of every batch.

herring run -n 4 -- python examples/jax_step.py
"""

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import herring
import herring.jax

BATCH, STEPS = 64, 50
Parameters = dict[str, jax.Array]


def predict(parameters: Parameters, inputs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def loss_of(parameters: Parameters, inputs: jax.Array) -> jax.Array:
    return jnp.mean((predict(parameters, inputs) - jnp.sin(inputs.sum(1, keepdims=True))) ** 2)


def make_parameters(seed: int) -> Parameters:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "w1": 0.3 * jax.random.normal(first, (8, 32)),
        "b1": jnp.zeros(32),
        "w2": 0.3 * jax.random.normal(second, (32, 1)),
        "b2": jnp.zeros(1),
    }


def train(
    parameters: Parameters,
    optimizer: optax.GradientTransformation,
    mean: Callable[[jax.Array], jax.Array],
    part: slice,
) -> tuple[Parameters, list[float]]:
    """Returns the parameters after all steps, and the loss of each step."""

    @jax.jit
    def step(parameters: Parameters, state: Any, inputs: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, mean(loss)

    state, losses = optimizer.init(parameters), []
    random = np.random.RandomState(0)
    for _ in range(STEPS):
        inputs = random.randn(BATCH, 8).astype(np.float32)
        parameters, state, loss = step(parameters, state, inputs[part])
        losses.append(float(loss))
    return parameters, losses


def main() -> None:
    herring.init()
    rank, size = herring.rank(), herring.size()
    if BATCH % size:
        raise SystemExit(f"{size} ranks cannot share batches of {BATCH} evenly")

    # All ranks start with rank 0's parameters.
    parameters = herring.jax.broadcast(make_parameters(seed=rank))
    optimizer = optax.chain(herring.jax.distributed_gradients(), optax.adam(1e-2))
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    parameters, losses = train(parameters, optimizer, herring.jax.allreduce, part)

    digest = hashlib.sha256(
        b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(parameters))
    )
    digests = herring.allgather_object(digest.hexdigest())
    if rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        print("parameters", "equal" if len({*digests}) == 1 else "DIFFER", "on all ranks")
        alone, _ = train(make_parameters(0), optax.adam(1e-2), lambda loss: loss, slice(None))
        far = max(
            float(jnp.abs(one - other).max())
            for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(parameters))
        )
        verdict = "equal to" if far < 1e-4 else "NOT those of"
        print(f"parameters {verdict} one process on whole batches (within {far:.1e})")


if __name__ == "__main__":
    main()
