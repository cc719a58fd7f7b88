"""Training in rounds that do not wait for all workers: in compiled programs and outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from herring.arrays.arguments import Operator
from herring.arrays.gradients import Source
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError
from herring.jax.keys import outside_programs
from herring.partial import Quorum, Replay, RoundStatistics
from herring.partial.lists import (
    NO_RESULT,
    RESULT_BEFORE_DIGEST,
    GradientList,
    PartialLists,
    spread,
    wants_lists,
)

# A function of a list of results and a state; it returns the state after a step of the optimizer.
Apply = Callable[[list[Any], Any], Any]


class Rounds:
    """Trains with an optimizer of optax in rounds that do not wait for all workers.

        rounds = herring.jax.Rounds(optax.adam(1e-3), sync="majority")
        state = rounds.init(parameters)

        @jax.jit
        def step(parameters, state, batch):
            gradients = jax.grad(loss)(parameters, batch)
            return rounds.apply(gradients, state, parameters)

        while rounds.round < 1000:
            parameters, state = step(parameters, state, next(batches))
        parameters, state = rounds.flush(state, parameters)

    `apply` contributes this rank's gradients and makes one step of the optimizer for each round,
    beginning with rounds that this rank missed. It returns parameters and not updates: the sum of
    several updates, added once, has other bits than the updates, added one after the other, and
    replicas would drift apart.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        sync: str | Quorum | Replay,
        op: Operator = "average",
        algorithm: str = "herring",
        digest_every: int = 100,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Creates it; nothing is exchanged before the first step is traced.

        Args:
          optimizer: an ``optax.GradientTransformation``, whole: with its schedule and clipping.
          sync: "solo", "majority", a `herring.Quorum` or a `herring.Replay`.
          op: "average" or "sum".
          algorithm: who closes the rounds and sums, with "solo" or "majority": "herring" (the
            servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers).
          digest_every: the number of rounds after which ranks compare a digest of the parameters; 0
            means never.
          name: the prefix of the operations' names, the same on all ranks. None numbers the objects
            in the order of their creation.

        Raises:
          InvalidArgumentError: an option cannot be used, or `sync` is "full".
          ShutdownError: `herring.init` was not called.
        """
        if not callable(getattr(optimizer, "init", None)) or not hasattr(optimizer, "update"):
            raise InvalidArgumentError(
                f"optimizer is {optimizer!r}; it must be an optax.GradientTransformation"
            )
        if not wants_lists(sync, algorithm=algorithm, group=group):
            raise InvalidArgumentError(
                "Rounds are partial; for sync='full' use herring.jax.distributed_gradients"
            )
        self._optimizer = optimizer
        self._programs: dict[Any, dict[Any, Any]] = {}  # by the structure of the parameters
        self._lists = PartialLists(
            name or "rounds",
            sync=sync,
            op=op,
            algorithm=algorithm,
            digest_every=digest_every,
            group=group,
            numbered=name is None,
        )

    def init(self, parameters: Any) -> Any:
        """Returns the state of the optimizer for these parameters."""
        return self._optimizer.init(parameters)

    @property
    def round(self) -> int:
        """The number of rounds applied; equal numbers mean equal parameters.

        Waits for the programs that have been started.
        """
        jax.effects_barrier()
        return self._lists.rounds

    @property
    def statistics(self) -> RoundStatistics:
        """Which workers were in which round or late."""
        jax.effects_barrier()
        return self._lists.statistics

    def apply(self, gradients: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
        """Contributes gradients, and makes a step of the optimizer for each round.

        If this rank missed rounds, their results come first, and nothing is waited for. Otherwise
        it waits for the next round.

        Args:
          gradients: a pytree like `parameters`.
          state: the state of the optimizer.
          parameters: a pytree of arrays, equal on all ranks after equal numbers of rounds.

        Returns:
          The parameters and the state after these steps.

        Raises:
          InvalidArgumentError: the gradients do not fit the parameters.
          MismatchError: parameters or options differ between ranks, or digests of the parameters.
          PeerLostError, TimeoutError: a rank is gone or does not come. A program raises
            `jax.errors.JaxRuntimeError` with the same text.
        """
        tree = jax.tree.structure(parameters)
        given, other = jax.tree.flatten(gradients)
        if tree != other:
            raise InvalidArgumentError(
                f"{self._lists.name}: the gradients are {other}, and the parameters are {tree}"
            )
        state = step_in_rounds(self._lists, given, *self._common(state, parameters))
        return jax.tree.unflatten(tree, state[0]), state[1]

    def flush(self, state: Any, parameters: Any) -> tuple[Any, Any]:
        """Makes the steps of all rounds until all ranks flush; not inside a compiled program.

        Ranks may have made different numbers of steps; afterwards their parameters are equal.

        Returns:
          The parameters and the state after these steps.
        """
        tree = jax.tree.structure(parameters)
        state = flush_rounds(self._lists, *self._common(state, parameters))
        return jax.tree.unflatten(tree, state[0]), state[1]

    def _common(self, state: Any, parameters: Any) -> tuple[Any, ...]:
        """Returns what `step_in_rounds` and `flush_rounds` take alike."""
        found, tree = jax.tree_util.tree_flatten_with_path(parameters)
        sources = [
            Source(jax.tree_util.keystr(path), tuple(jnp.shape(leaf)), str(jnp.result_type(leaf)))
            for path, leaf in found
        ]
        both = ([leaf for _, leaf in found], state)
        return sources, both, self._update(tree), _first, self._programs.setdefault(tree, {})

    def _update(self, tree: Any) -> Apply:
        def update(results: list[Any], both: Any) -> Any:
            leaves, state = both
            parameters = jax.tree.unflatten(tree, leaves)
            updates, state = self._optimizer.update(
                jax.tree.unflatten(tree, results), state, parameters
            )
            # As optax.apply_updates does.
            added = [
                (leaf + more).astype(leaf.dtype)
                for leaf, more in zip(leaves, jax.tree.leaves(updates))
            ]
            return added, state

        return update


def _first(both: Any) -> Sequence[Any]:
    return both[0]


def step_in_rounds(
    lists: PartialLists,
    gradients: Sequence[Any],
    sources: Sequence[Source],
    state: Any,
    apply: Apply,
    compared: Callable[[Any], Sequence[Any]],
    programs: dict[Any, Any],
) -> Any:
    """Contributes gradients and applies one result after the other, also in a compiled program.

    All results are applied by one compiled loop, also outside of programs: XLA fuses operations,
    and those of other programs would have other bits.

    Args:
      gradients: a gradient, or None, for each of `sources`.
      state: a pytree with all that a step changes.
      apply: makes a step; it gets a result for each of `sources`, None where no rank has one.
      compared: returns the arrays of a state whose digest ranks compare.
      programs: the programs of these functions, which are filled in here.

    Returns:
      The state after the steps.
    """
    present = {i: one for i, one in enumerate(gradients) if one is not None}
    for i, one in present.items():
        if tuple(jnp.shape(one)) != tuple(sources[i].shape):
            raise InvalidArgumentError(
                f"{lists.name}: the gradient of {sources[i].name!r} has shape {jnp.shape(one)}, "
                f"and its parameter has {tuple(sources[i].shape)}"
            )
    chosen = lists.plan(sources, list(present))
    places, given = tuple(present), list(present.values())

    def loop(given: list[Any], state: Any) -> Any:
        return _loop(lists, chosen, dict(zip(places, given)), state, apply, compared)

    if not outside_programs([*given, *jax.tree.leaves(state)]):
        return loop(given, state)
    return _run(lists, programs, (chosen.sources, tuple(chosen.used), places), loop, given, state)


def flush_rounds(
    lists: PartialLists,
    sources: Sequence[Source],
    state: Any,
    apply: Apply,
    compared: Callable[[Any], Sequence[Any]],
    programs: dict[Any, Any],
) -> Any:
    """Ends the series of rounds (collective) after all programs; returns the state afterwards."""
    if not outside_programs(jax.tree.leaves(state)):
        raise InvalidArgumentError(f"{lists.name}: flush() is not for a compiled program")
    jax.block_until_ready(state)
    jax.effects_barrier()
    chosen = lists.plan(sources, [])

    def loop(state: Any) -> Any:
        return _loop(lists, chosen, None, state, apply, compared)

    return _run(lists, programs, (chosen.sources, tuple(chosen.used), "flush"), loop, state)


def _run(
    lists: PartialLists, programs: dict[Any, Any], key: Any, loop: Callable[..., Any], *given: Any
) -> Any:
    if key not in programs:
        programs[key] = jax.jit(loop)
    with lists.outside():
        return jax.block_until_ready(programs[key](*given))


def _loop(
    lists: PartialLists,
    chosen: GradientList,
    present: dict[int, Any] | None,
    state: Any,
    apply: Apply,
    compared: Callable[[Any], Sequence[Any]],
) -> Any:
    """Adds the loop to the program; `present` are gradients by their places, or None to flush."""
    given = {} if present is None else present
    shapes = (
        jax.ShapeDtypeStruct((), jnp.int32),
        [
            jax.ShapeDtypeStruct(chosen.sources[place].shape, chosen.sources[place].dtype)
            for place in chosen.used
        ],
    )

    def called(function: Callable[..., int], *arguments: Any) -> tuple[np.int32, list[np.ndarray]]:
        into = [np.empty(one.shape, one.dtype) for one in shapes[1]]
        with lists.inside():
            return np.int32(function(*arguments, into)), into

    def begin(*arrays: Any) -> tuple[np.int32, list[np.ndarray]]:
        if present is None:
            return called(lists.begin_flush, chosen)
        return called(lists.begin, chosen, list(given), [np.asarray(one) for one in arrays])

    def advance() -> tuple[np.int32, list[np.ndarray]]:
        return called(lists.advance)

    def digest(*arrays: Any) -> np.int32:
        with lists.inside():
            lists.digest([np.asarray(one) for one in arrays])
        return np.int32(0)

    def compare(arrays: Sequence[Any]) -> Any:
        return io_callback(digest, shapes[0], *arrays, ordered=True)

    def body(carry: Any) -> Any:
        found, results, state = carry
        if results:  # otherwise no rank has ever had a gradient
            state = apply(spread(chosen, results), state)
        due = found == RESULT_BEFORE_DIGEST
        jax.lax.cond(due, compare, lambda _: jnp.int32(0), list(compared(state)))
        return (*io_callback(advance, shapes, ordered=True), state)

    arrays = [one.astype(chosen.sources[i].dtype) for i, one in given.items()]
    found, results = io_callback(begin, shapes, *arrays, ordered=True)
    begun = (found, results, jax.tree.map(jnp.asarray, state))
    return jax.lax.while_loop(lambda carry: carry[0] != NO_RESULT, body, begun)[2]
