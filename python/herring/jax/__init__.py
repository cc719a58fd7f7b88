"""Herring for JAX: collectives on pytrees inside compiled programs, and gradients for optax.

    import herring
    import herring.jax

    herring.init()

    @jax.jit
    def step(parameters, batch):
        gradients = herring.jax.allreduce(jax.grad(loss)(parameters, batch))
        ...

Each process has one device. A call is identified by its place in the program, or by its `name`, so
all ranks must trace the same calls. See docs/jax.md.

Args:
  name: Identifies the call across ranks; None means that the place of the call identifies it.

Raises:
  InvalidArgumentError: A dtype, `op` or another value is not supported; under `jax.vmap`; several
    devices in this process; inside of `jax.checkpoint` before JAX 0.8.
  ShutdownError: `herring.init` was not called.
  HerringError: The operation failed outside of a program. A program raises
    `jax.errors.JaxRuntimeError` with the name and text of the error where its results are used, or
    on a GPU possibly at a later call (docs/jax.md).
"""

try:
    import jax as _jax
except ImportError as error:
    from herring.base.parts import install_command

    raise ImportError(f"herring.jax needs JAX: {install_command('jax')}") from error

from herring.jax.collectives import allgather, allreduce, broadcast, reduce_scatter
from herring.jax.gradients import distributed_gradients
from herring.jax.rounds import Rounds

del _jax

__all__ = [
    "Rounds",
    "allgather",
    "allreduce",
    "broadcast",
    "distributed_gradients",
    "reduce_scatter",
]
