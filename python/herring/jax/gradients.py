"""A gradient transformation for optax (which Flax uses) that averages over all ranks."""

from __future__ import annotations

from typing import Any

from herring.arrays.arguments import Operator
from herring.arrays.groups import Group
from herring.jax.collectives import allreduce


def distributed_gradients(
    op: Operator = "average", *, name: str | None = None, group: Group | None = None
) -> Any:
    """Returns a gradient transformation of optax that reduces gradients over all ranks.

    It must be the first in the chain, so that all ranks update in the same way:
    ``optax.chain(herring.jax.distributed_gradients(), optax.adam(1e-3))``. It has no state.

    Args:
      name: identifies the operation across ranks; needed if ranks call ``update`` in different
        places. None: the place of the call identifies it.

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
