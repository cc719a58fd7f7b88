"""Collectives on pytrees, inside compiled programs and outside of them.

Results are new values of the program, and computations that do not need a result go on while its
call is under way. A call is identified by its place in the program, or by its ``name``, so all
ranks must trace the same calls. Outside of a program a call returns when it is complete.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from herring.arrays.arguments import Operator, Timeout, seconds_of
from herring.arrays.calls import CallOptions
from herring.arrays.groups import Group, scope_of
from herring.base.split import even_parts
from herring.errors import HerringError, InvalidArgumentError
from herring.jax.calls import Call, described, execute
from herring.jax.keys import key_of, outside_programs
from herring.jax.order import TOKEN, last_token, note_token

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_REDUCIBLE = (*_FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool")
_OPS = ("average", "sum", "min", "max", "product")
# Leaves of one dtype travel together up to this size, a larger leaf alone. The first are under way
# while the backward pass still computes the others.
_BUCKET_BYTES = 4 << 20


def allreduce(
    tree: Any,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Any:
    """Reduces every leaf of `tree` over all ranks, element by element.

    Leaves of one dtype travel together in operations of up to 4 MiB. "sum" and "average" can be
    differentiated in reverse mode: the gradient, that of the sum of all ranks' losses, is reduced
    with the same operator.

    Args:
      tree: a pytree of arrays: float32, float64, float16, bfloat16, int8, int16, int32, int64,
        uint8 or bool. Structure, shapes and dtypes must be equal on all ranks. Empty leaves are
        not sent.

    Returns:
      A tree of the same structure, shapes and dtypes, equal on all ranks.
    """
    leaves, treedef = _leaves_of("allreduce", tree)
    call = CallOptions(name, timeout, group)
    found = reduce_leaves(leaves, call, op=op, prescale=prescale, postscale=postscale)
    return jax.tree.unflatten(treedef, found)


def reduce_leaves(
    leaves: list[Any],
    call: CallOptions,
    *,
    op: Operator,
    prescale: float = 1.0,
    postscale: float = 1.0,
    refusal: str = "",
) -> list[Any]:
    """Reduces every array of a list over all ranks, element by element.

    Args:
      leaves: arrays of the dtypes of `allreduce`; empty ones are not sent.
      refusal: why this rank refuses the call; all ranks raise InvalidArgumentError with this text.
        "": it does not refuse.

    Returns:
      A list of arrays of the same shapes and dtypes, equal on all ranks.
    """
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    _check_or_refuse("allreduce", leaves, call, **how)
    buckets = _buckets(leaves)
    return _in_calls("allreduce", leaves, call, buckets, _reduce_bucket, refusal=refusal, **how)


def broadcast(
    tree: Any,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Any:
    """Returns on every rank the `tree` of rank `root`.

    Args:
      tree: a pytree of arrays of any dtype; random keys must be passed as `jax.random.key_data`.
        Structure, shapes and dtypes must be equal on all ranks.
      root: a rank; its index inside the group if there is a group.

    Returns:
      A tree of the same structure, shapes and dtypes.
    """
    leaves, treedef = _leaves_of("broadcast", tree)
    root, size = operator.index(root), scope_of(group).size
    if not 0 <= root < size:
        raise InvalidArgumentError(f"root is {root}; ranks are 0 to {size - 1}")
    call = CallOptions(name, timeout, group)
    found = _in_calls("broadcast", leaves, call, _all_at_once(leaves), _move, root=root)
    return jax.tree.unflatten(treedef, found)


def allgather(
    tree: Any,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Any:
    """Concatenates each leaf over all ranks along its first dimension, in rank order.

    Args:
      tree: a pytree of arrays of any dtype with at least one dimension. Structure, shapes (the
        first dimension too) and dtypes must be equal on all ranks, because a program's shapes are
        fixed when it is compiled.

    Returns:
      A tree of the same structure; a leaf of shape [N, ...] becomes one of shape [size * N, ...].
    """
    leaves, treedef = _leaves_of("allgather", tree, rows=True)
    size = scope_of(group).size
    shapes = [(leaf.shape[0] * size, *leaf.shape[1:]) for leaf in leaves]
    call = CallOptions(name, timeout, group)
    found = _in_calls("allgather", leaves, call, _all_at_once(leaves), _move, shapes)
    return jax.tree.unflatten(treedef, found)


def reduce_scatter(
    tree: Any,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Any:
    """Reduces each leaf over all ranks and gives each rank its part of the first dimension.

    Args:
      tree: a pytree of arrays of the dtypes of `allreduce` with at least one dimension. Structure,
        shapes and dtypes must be equal on all ranks.

    Returns:
      A tree of the same structure with this rank's rows. If N rows are divided among P ranks, the
      first ``N % P`` ranks get one row more than the others. So the shapes, and the compiled
      program, may differ between ranks.
    """
    leaves, treedef = _leaves_of("reduce_scatter", tree, rows=True)
    call = CallOptions(name, timeout, group)
    how: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    _check_or_refuse("reduce_scatter", leaves, call, **how)
    scope = scope_of(group)
    shapes = [
        (even_parts(leaf.shape[0], scope.size)[scope.rank], *leaf.shape[1:]) for leaf in leaves
    ]
    found = _in_calls("reduce_scatter", leaves, call, _buckets(leaves), _move, shapes, **how)
    return jax.tree.unflatten(treedef, found)


def _leaves_of(kind: str, tree: Any, rows: bool = False) -> tuple[list[Any], Any]:
    leaves, treedef = jax.tree.flatten(tree)
    try:
        leaves = [jnp.asarray(leaf) for leaf in leaves]
    except TypeError as error:
        raise InvalidArgumentError(f"{kind}: a leaf is not an array ({error})") from None
    for leaf in leaves:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise InvalidArgumentError(
                f"{kind}: dtype {leaf.dtype} is not supported; of random keys pass "
                "jax.random.key_data(key)"
            )
        if rows and leaf.ndim == 0:
            raise InvalidArgumentError(f"{kind} needs arrays with at least one dimension")
    return leaves, treedef


def _check_or_refuse(kind: str, leaves: Sequence[Any], call: CallOptions, **how: Any) -> None:
    """Checks a reduction; outside of programs, tells the other ranks if this rank refuses it."""
    try:
        _check_reduction(kind, leaves, **how)
    except InvalidArgumentError as error:
        if outside_programs(leaves):
            with contextlib.suppress(HerringError):
                refused = Call(
                    kind, key_of(kind, call.name, leaves), group=call.group,
                    timeout=seconds_of(call.timeout), refusal=str(error),
                )  # fmt: skip
                one = jnp.zeros(scope_of(call.group).size, jnp.float32)
                execute(refused, last_token(), [one], [jax.ShapeDtypeStruct((1,), one.dtype)])
        raise


def _check_reduction(
    kind: str, leaves: Sequence[Any], op: Operator, prescale: float, postscale: float
) -> None:
    if op not in _OPS:
        raise InvalidArgumentError(f"{kind}: op is {op!r}; it must be one of {', '.join(_OPS)}")
    for leaf in leaves:
        if str(leaf.dtype) not in _REDUCIBLE:
            raise InvalidArgumentError(
                f"{kind}: dtype {leaf.dtype} is not supported; use one of {', '.join(_REDUCIBLE)}"
            )
        if str(leaf.dtype) in _FLOATS:
            continue
        if op == "average" or prescale != 1 or postscale != 1:
            raise InvalidArgumentError(
                f"{kind}: {leaf.dtype} cannot be averaged or scaled; use op 'sum' on integers and "
                "bool, or convert to a float first"
            )


def _buckets(leaves: Sequence[Any]) -> list[list[int]]:
    """Groups the indices of leaves that travel together: one dtype, in order, up to a size.

    The last leaves come first, because backward passes produce gradients in that order.
    """
    buckets: list[list[int]] = []
    open_ones: dict[str, tuple[list[int], int]] = {}
    for place, leaf in reversed(list(enumerate(leaves))):
        if leaf.size == 0:
            continue
        bucket, held = open_ones.get(str(leaf.dtype), ([], 0))
        if bucket and held + leaf.nbytes > _BUCKET_BYTES:
            bucket, held = [], 0
        if not bucket:
            buckets.append(bucket)
        bucket.append(place)
        open_ones[str(leaf.dtype)] = (bucket, held + leaf.nbytes)
    return [sorted(bucket) for bucket in buckets]


def _all_at_once(leaves: Sequence[Any]) -> list[list[int]]:
    places = [place for place, leaf in enumerate(leaves) if leaf.size > 0]
    return [places] if places else []


def _in_calls(
    kind: str,
    leaves: list[Any],
    asked: CallOptions,
    buckets: Sequence[Sequence[int]],
    make: Callable[..., Sequence[Any]],
    shapes: Sequence[tuple[int, ...]] | None = None,
    **options: Any,
) -> list[Any]:
    """Calls one operation for each bucket; leaves without elements are not sent.

    Ranks must agree which leaves are empty, so calls describe those, too. If all leaves are empty,
    a call without them tells the ranks whether all others have empty leaves.
    """
    group, seconds = asked.group, seconds_of(asked.timeout)
    scope_of(group)
    shapes = shapes or [leaf.shape for leaf in leaves]
    found = [
        leaf if leaf.size > 0 else jnp.zeros(shape, leaf.dtype)
        for leaf, shape in zip(leaves, shapes)
    ]
    key = key_of(kind, asked.name, leaves)
    token = last_token()
    empty = [leaf for leaf in leaves if leaf.size == 0]
    if leaves and not buckets:
        size = scope_of(group).size
        call = Call(
            kind, key, group=group, timeout=seconds, agreement=described(empty), **options,
        )  # fmt: skip
        one = jnp.zeros(size if kind == "reduce_scatter" else 1, jnp.float32)
        whole = jax.ShapeDtypeStruct((size if kind == "allgather" else 1,), one.dtype)
        token, _ = _move(call, (whole,), token, one)
    for number, bucket in enumerate(buckets):
        sent = [leaves[place] for place in bucket]
        agreement = described([*sent, *empty]) if empty else ""
        if len(buckets) > 1:  # otherwise a rank with other dtypes might have a part more
            agreement = f"{agreement or described(sent)}; part {number + 1} of {len(buckets)}"
        call = Call(
            kind, f"{key}/{number}" if number else key, group=group, timeout=seconds,
            in_place=len(buckets) > 1, agreement=agreement, **options,
        )  # fmt: skip
        results = tuple(
            jax.ShapeDtypeStruct(shapes[place], leaves[place].dtype) for place in bucket
        )
        token, *made = make(call, results, token, *sent)
        for place, result in zip(bucket, made):
            found[place] = result
    note_token(token)
    return found


def _move(
    call: Call, results: tuple[jax.ShapeDtypeStruct, ...], token: Any, *leaves: Any
) -> tuple[Any, ...]:
    return execute(call, token, leaves, results)


def _reduce_bucket(
    call: Call, results: tuple[jax.ShapeDtypeStruct, ...], token: Any, *leaves: Any
) -> tuple[Any, ...]:
    smooth = call.op in ("average", "sum") and str(leaves[0].dtype) in _FLOATS
    if smooth and not outside_programs(leaves):
        return _differentiable(call, results, token, *leaves)
    return execute(call, token, leaves, results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(
    call: Call, results: tuple[jax.ShapeDtypeStruct, ...], token: Any, *leaves: Any
) -> tuple[Any, ...]:
    return execute(call, token, leaves, results)


def _forward(
    call: Call, results: tuple[jax.ShapeDtypeStruct, ...], token: Any, *leaves: Any
) -> tuple[tuple[Any, ...], None]:
    return _differentiable(call, results, token, *leaves), None


def _backward(
    call: Call,
    results: tuple[jax.ShapeDtypeStruct, ...],
    _: None,
    cotangents: tuple[Any, ...],
) -> tuple[Any, ...]:
    backward = call._replace(key=call.key + "~gradient")
    token, *found = _differentiable(backward, results, last_token(), *cotangents[1:])
    note_token(token)
    return (np.zeros(TOKEN.shape, jax.dtypes.float0), *found)


_differentiable.defvjp(_forward, _backward)
