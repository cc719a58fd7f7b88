"""Lets a Keras optimizer make one step for each partial round, on every backend of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from herring.arrays.gradients import Source
from herring.errors import InvalidArgumentError
from herring.partial.lists import (
    NO_RESULT,
    RESULT_BEFORE_DIGEST,
    GradientList,
    PartialLists,
    spread,
)


class OptimizerRounds:
    """The rounds of one optimizer.

    Attributes:
      lists: contributes gradients and gives results.
      passes: whether the original optimizer calls `apply`, in its own `stateless_apply`.
    """

    def __init__(self, lists: PartialLists) -> None:
        self.lists = lists
        self.passes = False
        self._variables: list[Any] | None = None  # those of the latest step
        self._programs: dict[Any, dict[Any, Any]] = {}  # by the variables

    def apply(
        self, optimizer: Any, kind: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Contributes gradients, and makes a step of the class `kind` for each round."""
        if not optimizer.built:
            with keras.name_scope(optimizer.name):  # not in a loop, where no variables can be made
                optimizer.build(list(variables))
        self._variables = list(variables)
        if keras.backend.backend() == "tensorflow":
            from herring.tensorflow.rounds import step_in_rounds

            step_in_rounds(
                self.lists,
                list(gradients),
                self._variables,
                self._step(optimizer, kind),
                self._programs_now(),
            )
        elif keras.backend.backend() == "jax":
            self._apply_on_jax(optimizer, kind, list(gradients))
        else:
            import torch

            torch.compiler.disable(self._apply_on_torch)(optimizer, kind, list(gradients))

    def flush(self, optimizer: Any, kind: Any) -> None:
        """Makes the steps of all rounds until all ranks flush (collective)."""
        if self._variables is None:
            if not optimizer.built:
                raise InvalidArgumentError(
                    f"flush() of {optimizer.name!r}, which has no variables yet; build it before: "
                    "optimizer.build(model.trainable_variables)"
                )
            self._variables = list(optimizer._trainable_variables)
        variables = self._variables
        if keras.backend.backend() == "tensorflow":
            from herring.tensorflow.rounds import flush_rounds

            step = self._step(optimizer, kind)
            flush_rounds(self.lists, variables, step, self._programs_now())
        elif keras.backend.backend() == "jax":
            self._apply_on_jax(optimizer, kind, None)
        else:
            chosen = self.lists.plan(_sources(variables), [])
            room = self.lists.room(chosen)
            self._loop(optimizer, kind, chosen, self.lists.begin_flush(chosen, room), room)

    def _step(self, optimizer: Any, kind: Any) -> Any:
        variables = self._variables
        return lambda results: kind.apply(optimizer, results, variables)

    def _programs_now(self) -> dict[Any, Any]:
        return self._programs.setdefault(tuple(map(id, self._variables or ())), {})

    # -- torch ------------------------------------------------------------------------------------

    def _apply_on_torch(self, optimizer: Any, kind: Any, gradients: list[Any]) -> None:
        given = {i: _host(one) for i, one in enumerate(gradients) if one is not None}
        chosen = self.lists.plan(_sources(self._variables or []), list(given))
        room = self.lists.room(chosen)
        found = self.lists.begin(chosen, list(given), list(given.values()), room)
        self._loop(optimizer, kind, chosen, found, room)

    def _loop(
        self, optimizer: Any, kind: Any, chosen: GradientList, found: int, room: list[np.ndarray]
    ) -> None:
        dtypes = [chosen.sources[place].dtype for place in chosen.used]
        step = self._step(optimizer, kind)
        while found != NO_RESULT:
            # The backend may adopt an array's memory, and the next result is written there.
            copies = (one.copy() for one in room)
            results = [keras.ops.convert_to_tensor(a, dtype=d) for a, d in zip(copies, dtypes)]
            step(spread(chosen, results))
            if found == RESULT_BEFORE_DIGEST:
                self.lists.digest([_host(variable) for variable in self._variables or ()])
            found = self.lists.advance(room)

    # -- JAX, whose compiled loop needs values instead of variables -------------------------------

    def stateless_apply(
        self,
        optimizer: Any,
        kind: Any,
        optimizer_variables: Sequence[Any],
        gradients: Sequence[Any] | None,
        trainable_variables: Sequence[Any],
    ) -> tuple[Any, Any]:
        """Does as `apply`, with values of variables; returns the values after the steps.

        Args:
          gradients: this rank's gradients; None flushes.
        """
        from herring.jax.rounds import flush_rounds, step_in_rounds

        self._variables = list(optimizer._trainable_variables)

        def make_step(results: list[Any], state: Any) -> Any:
            self.passes = True
            try:
                trainable, own = kind.stateless_apply(optimizer, state[1], results, state[0])
            finally:
                self.passes = False
            return list(trainable), list(own)

        state = (list(trainable_variables), list(optimizer_variables))
        more = (_sources(self._variables), state, make_step, _trainable, self._programs_now())
        if gradients is None:
            return flush_rounds(self.lists, *more)
        return step_in_rounds(self.lists, list(gradients), *more)

    def _apply_on_jax(self, optimizer: Any, kind: Any, gradients: list[Any] | None) -> None:
        from herring.jax.keys import outside_programs

        variables = list(optimizer._trainable_variables)
        if gradients is not None:
            if not outside_programs([one for one in gradients if one is not None]):
                raise InvalidArgumentError(
                    f"{self.lists.name}: apply() in a compiled function, where the steps of "
                    "several rounds cannot change variables; call optimizer.stateless_apply(), as "
                    "model.fit does"
                )
            given = dict(zip(map(id, self._variables or ()), gradients))
            gradients = [given.get(id(variable)) for variable in variables]
        own = list(optimizer.variables)
        values = self.stateless_apply(
            optimizer,
            kind,
            [variable.value for variable in own],
            gradients,
            [variable.value for variable in variables],
        )
        for variable, value in zip([*variables, *own], [*values[0], *values[1]]):
            variable.assign(value)


def _trainable(state: Any) -> Sequence[Any]:
    trainable: Sequence[Any] = state[0]
    return trainable


def _host(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def _sources(variables: Sequence[Any]) -> list[Source]:
    return [
        Source(one.path, tuple(one.shape), keras.backend.standardize_dtype(one.dtype))
        for one in variables
    ]
