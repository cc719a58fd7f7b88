"""Herring for JAX: collectives on pytrees inside compiled programs, and gradients for optax.

    import herring
    import herring.jax

    herring.init()

    @jax.jit
    def step(parameters, batch):
        gradients = herring.jax.allreduce(jax.grad(loss)(parameters, batch))
        ...

Each process has one device. See docs/jax.md.
"""

try:
    import jax as _jax
except ImportError as error:
    from herring.base.parts import install_command

    raise ImportError(f"herring.jax needs JAX: {install_command('jax')}") from error

from herring.jax.collectives import allgather, allreduce, broadcast, reduce_scatter
from herring.jax.gradients import distributed_gradients

del _jax

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "distributed_gradients",
    "reduce_scatter",
]
