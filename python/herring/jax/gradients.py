"""Gradients that are averaged over all ranks first, for optax (Flax uses it)."""

from __future__ import annotations

from typing import Any

from herring.arrays.groups import Group
from herring.jax.collectives import allreduce

__all__ = ["distributed_gradients"]


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
            "herring.jax.distributed_gradients needs optax: pip install optax"
        ) from error

    def update(updates: Any, state: Any, parameters: Any = None) -> tuple[Any, Any]:
        del parameters
        return allreduce(updates, op, name=name, group=group), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)
