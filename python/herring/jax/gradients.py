"""Optimizers that average gradients over all ranks first: of optax (Flax uses it), and of Keras."""

from __future__ import annotations

from typing import Any

from herring.groups import Group
from herring.jax.collectives import allreduce

__all__ = ["distributed_gradients", "distributed_keras_optimizer"]


def distributed_gradients(
    op: str = "average", *, name: str | None = None, group: Group | None = None
) -> Any:
    """A gradient transformation of optax that reduces gradients over all ranks.

    ``optax.chain(herring.jax.distributed_gradients(), optax.adam(1e-3))``: first in the chain, so
    that all ranks update alike. It has no state.

    Args:
      op: as of `herring.jax.allreduce`.
      name: likewise; needed where ranks call ``update`` in different places.
      group: likewise.

    Returns:
      An ``optax.GradientTransformation``.

    Raises:
      ImportError: optax is not installed.
    """
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            "herring.jax.distributed_gradients needs optax: pip install 'herring-dl[jax]', or "
            "pip install optax"
        ) from error

    def update(updates: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        del parameters
        return allreduce(updates, op, name=name, group=group), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)


def distributed_keras_optimizer(
    optimizer: Any, op: str = "average", *, name: str | None = None, group: Group | None = None
) -> Any:
    """An optimizer of Keras 3 on the JAX backend as this one, that reduces gradients first.

    Args:
      optimizer: a ``keras.optimizers.Optimizer`` that is not built yet.
      op: as of `herring.jax.allreduce`.
      name: likewise.
      group: likewise.

    Returns:
      An optimizer with the same settings, of a class below that of `optimizer`.
    """
    base: Any = type(optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        reduced = allreduce(list(grads), op, name=name, group=group)
        return base.apply(self, reduced, trainable_variables)

    made = type(f"Distributed{base.__name__}", (base,), {"apply": apply})
    return made.from_config(optimizer.get_config())
