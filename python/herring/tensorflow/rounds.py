"""Training in rounds that do not wait for all workers: eagerly and in a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.arrays.arguments import Operator
from herring.arrays.groups import Group
from herring.base.units import counted
from herring.errors import InvalidArgumentError
from herring.partial import Quorum, Replay, RoundStatistics
from herring.partial.lists import (
    NO_RESULT,
    RESULT_BEFORE_DIGEST,
    GradientList,
    PartialLists,
    spread,
    wants_lists,
)
from herring.tensorflow.averaging import source_of
from herring.tensorflow.graphs import has_no_order
from herring.tensorflow.ops import read, update
from herring.tensorflow.xla import refuse_xla

Apply = Callable[[list[Any]], Any]


class Rounds:
    """Trains variables in rounds that do not wait for all workers (docs/partial.md).

        rounds = herring.Rounds(
            model.trainable_variables,
            lambda averages: optimizer.apply_gradients(zip(averages, model.trainable_variables)),
            sync="majority",
        )

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = ...
            rounds.step(tape.gradient(loss, model.trainable_variables))

        while rounds.round < 1000:
            step(*next(batches))
        rounds.flush()

    `step` contributes this rank's gradients and calls the function once for each round, beginning
    with rounds that this rank missed. In a `tf.function` the function is traced once, as the body
    of a loop. So all that it changes are variables, and schedules that count the optimizer's
    iterations count rounds. That is so outside of a `tf.function`, too, because eager operations
    would have other bits than those of other ranks' graphs.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        apply: Apply,
        *,
        sync: str | Quorum | Replay,
        op: Operator = "average",
        algorithm: str = "herring",
        digest_every: int = 100,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Creates it; nothing is exchanged before the first step.

        Args:
          variables: the variables to train, in an order that is the same on all ranks. Give them
            equal values on all ranks before (`broadcast_variables`).
          apply: a function of a list with the result for each of the variables (None for one that
            no rank used in the first step). It makes one step of the optimizer.
          sync: "solo", "majority", a `herring.Quorum` or a `herring.Replay`.
          op: "average" or "sum".
          algorithm: who closes the rounds and sums, with "solo" or "majority": "herring" (the
            servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers).
          digest_every: the number of rounds after which ranks compare a digest of the variables; 0
            means never.
          name: the prefix of the operations' names, the same on all ranks. None numbers the objects
            in the order of their creation.

        Raises:
          InvalidArgumentError: an option cannot be used, or `sync` is "full".
          ShutdownError: `herring.init` was not called.
        """
        if not wants_lists(sync, algorithm=algorithm, group=group):
            raise InvalidArgumentError(
                "Rounds are partial; for sync='full' use herring.tensorflow.DistributedGradientTape"
            )
        self._variables = list(variables)
        self._apply = apply
        self._programs: dict[Any, Any] = {}
        self._lists = PartialLists(
            name or "rounds",
            sync=sync,
            op=op,
            algorithm=algorithm,
            digest_every=digest_every,
            group=group,
            numbered=name is None,
        )

    @property
    def round(self) -> int:
        """The number of rounds applied; equal numbers mean equal variables."""
        return self._lists.rounds

    @property
    def statistics(self) -> RoundStatistics:
        """Which workers were in which round or late."""
        return self._lists.statistics

    @tf.autograph.experimental.do_not_convert
    def step(self, gradients: Sequence[Any]) -> None:
        """Contributes gradients, and applies one result after the other.

        If this rank missed rounds, their results come first, and nothing is waited for. Otherwise
        it waits for the next round.

        Args:
          gradients: a tensor, tf.IndexedSlices or None for each of the variables.

        Raises:
          InvalidArgumentError: the gradients do not fit, or inside tf.distribute or XLA.
          MismatchError: the variables or options differ between ranks, or their digests.
          PeerLostError, TimeoutError: a rank is gone or does not come. From a graph TensorFlow
            raises tf.errors.UnknownError with the same text.
        """
        step_in_rounds(self._lists, list(gradients), self._variables, self._apply, self._programs)

    @tf.autograph.experimental.do_not_convert
    def flush(self) -> None:
        """Applies the results of all rounds until all ranks flush; not inside a tf.function.

        Ranks may have made different numbers of steps; afterwards their variables are equal.
        """
        flush_rounds(self._lists, self._variables, self._apply, self._programs)


def step_in_rounds(
    lists: PartialLists,
    gradients: list[Any],
    variables: Sequence[Any],
    apply: Apply,
    programs: dict[Any, Any],
) -> None:
    """Contributes gradients and applies one result after the other, eagerly or in a graph.

    All results are applied by one loop of a graph, also outside of a `tf.function`: TensorFlow
    optimizes graphs, and eager operations would have other bits.

    Args:
      programs: the graphs of these variables and this function, which are filled in here.
    """
    if len(gradients) != len(variables):
        raise InvalidArgumentError(
            f"{lists.name}: {counted(len(gradients), 'gradient')} for "
            f"{counted(len(variables), 'variable')}"
        )
    if tf.distribute.has_strategy():
        raise InvalidArgumentError(
            f"{lists.name}: inside a tf.distribute strategy; start one process per device instead"
        )
    sources = [source_of(variable) for variable in variables]
    tensors = {
        place: tf.cast(tf.convert_to_tensor(gradient), sources[place].dtype)
        for place, gradient in enumerate(gradients)
        if gradient is not None
    }
    chosen = lists.plan(sources, list(tensors))
    places = tuple(tensors)
    if tf.executing_eagerly():

        def loop(*values: tf.Tensor) -> None:
            _loop(lists, chosen, dict(zip(places, values)), variables, apply)

        _run(
            lists,
            programs,
            (chosen.sources, tuple(chosen.used), places),
            loop,
            list(tensors.values()),
        )
        return
    if has_no_order():
        raise InvalidArgumentError(
            f"{lists.name}: in a graph of tf.compat.v1; make rounds in a tf.function or eagerly"
        )
    refuse_xla(lists.name)
    _loop(lists, chosen, tensors, variables, apply)


@tf.autograph.experimental.do_not_convert
def flush_rounds(
    lists: PartialLists, variables: Sequence[Any], apply: Apply, programs: dict[Any, Any]
) -> None:
    """Ends the series of rounds (collective), outside of a `tf.function`."""
    if not tf.executing_eagerly():
        raise InvalidArgumentError(f"{lists.name}: flush() is not for a tf.function; call it after")
    chosen = lists.plan([source_of(variable) for variable in variables], [])

    def loop() -> None:
        _loop(lists, chosen, None, variables, apply)

    _run(lists, programs, (chosen.sources, tuple(chosen.used), "flush"), loop, [])


def _run(
    lists: PartialLists,
    programs: dict[Any, Any],
    key: Any,
    loop: Callable[..., None],
    values: list[tf.Tensor],
) -> None:
    if key not in programs:
        programs[key] = tf.function(loop, autograph=False)
    with lists.outside():
        programs[key](*values)


def _loop(
    lists: PartialLists,
    chosen: GradientList,
    tensors: dict[int, tf.Tensor] | None,
    variables: Sequence[Any],
    apply: Apply,
) -> None:
    """Adds the loop to the graph; `tensors` are gradients by their places, or None to flush."""
    given = {} if tensors is None else tensors
    places = [place for place in chosen.used if place in given]

    def begin(arrays: list[np.ndarray]) -> None:
        *into, code = arrays
        own = [array for place, array in zip(chosen.used, into) if place in given]
        with lists.inside():
            if tensors is None:
                code[...] = lists.begin_flush(chosen, into)
            else:
                code[...] = lists.begin(chosen, places, own, into)

    def advance(arrays: list[np.ndarray]) -> None:
        *into, code = arrays
        with lists.inside():
            code[...] = lists.advance(into)

    def digest(arrays: list[np.ndarray]) -> None:
        with lists.inside():
            lists.digest(arrays)

    def body(*values: tf.Tensor) -> list[tf.Tensor]:
        *results, code = values
        if results:  # otherwise no rank has ever had a gradient
            apply(spread(chosen, results))

        def compare() -> tf.Tensor:
            now = [tf.convert_to_tensor(variable) for variable in variables]
            with tf.control_dependencies([read(digest, now, owner=lists)]):
                return tf.constant(True)

        compared = tf.cond(code == RESULT_BEFORE_DIGEST, compare, lambda: tf.constant(False))
        with tf.control_dependencies([compared]):
            return update(advance, [*results, tf.identity(code)], owner=lists)

    sources = chosen.sources
    begun = [
        given[place] if place in given else tf.zeros(sources[place].shape, sources[place].dtype)
        for place in chosen.used
    ]
    first = update(begin, [*begun, tf.constant(NO_RESULT, tf.int32)], owner=lists)
    tf.while_loop(lambda *values: values[-1] != NO_RESULT, body, first, parallel_iterations=1)
