"""A gradient tape whose gradients are averages."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from herring.arrays.arguments import Operator
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import forget_job
from herring.arrays.wire import WireDType
from herring.errors import InvalidArgumentError
from herring.tensorflow.averaging import TensorAverager


class _KnownList(dict[Any, Any]):
    """The averagers for one list of variables, by options."""

    def __init__(self, variables: Sequence[Any]) -> None:
        super().__init__()
        self._references = [weakref.ref(variable, _forget) for variable in variables]

    def alive(self) -> bool:
        return all(reference() is not None for reference in self._references)

    def is_of(self, variables: Sequence[Any]) -> bool:
        return len(variables) == len(self._references) and all(
            reference() is variable for reference, variable in zip(self._references, variables)
        )


# A tape lives for one step. The lists of variables that tapes have seen are kept as long as the
# variables live, because a rank that joins takes part in the rounds of all lists that remain. Lists
# are numbered in the order in which they are first seen.
_lists: list[_KnownList] = []
_named: dict[tuple[Any, ...], Any] = {}


def _forget_job() -> None:
    """Drops the averagers that do not go on in the next generation of an elastic job."""
    for among in (*_lists, _named):
        for key in [key for key, one in among.items() if not getattr(one, "follows", False)]:
            del among[key]
    _lists[:] = [known for known in _lists if known]


forget_job.append(_forget_job)


def _forget(_: object) -> None:
    """Drops the lists one of whose variables is gone."""
    _lists[:] = [known for known in _lists if known.alive()]


class DistributedGradientTape(tf.GradientTape):
    """A tf.GradientTape whose `gradient` returns averages over all ranks.

        with tf.GradientTape() as tape:
            loss = ...
        tape = herring.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    It may also be made before the block (``with DistributedGradientTape(tf.GradientTape()) as
    tape:``) and may be persistent. `jacobian` and `batch_jacobian` exchange nothing.
    """

    def __init__(
        self,
        tape: tf.GradientTape | None = None,
        *,
        op: Operator = "average",
        wire_dtype: WireDType | None = None,
        buffer_bytes: int = 0,
        sparse: str = "densify",
        name: str | None = None,
        group: Group | None = None,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
    ) -> None:
        """Takes over the recording of another tape, or begins a new one.

        Args:
          tape: a tf.GradientTape whose recording is used; None: a new tape.
          op: "average" or "sum".
          wire_dtype: "float16" or "bfloat16": float32 gradients travel between nodes in it. "fp8",
            "fp8_e5m2" or "int8": all do, with a scale for each 32 numbers. A pair such as
            ``("fp8", "bfloat16")``: averages come back in the second.
          buffer_bytes: size of a fusion buffer; 0: chosen by the plan.
          sparse: "densify" converts tf.IndexedSlices to dense tensors; "gather" concatenates the
            slices of all ranks.
          name: the name of the operations. None: lists of variables are numbered in the order in
            which they are first seen. All ranks must then see new lists in the same order; later
            steps may use known lists in any order.
          persistent: an option of tf.GradientTape, for a new tape.
          watch_accessed_variables: an option of tf.GradientTape, for a new tape.

        Raises:
          InvalidArgumentError: `tape` is not a tf.GradientTape, or an option is unknown.
          ShutdownError: `herring.init` was not called.
        """
        super().__init__(persistent, watch_accessed_variables)
        if tape is not None:
            if not isinstance(tape, tf.GradientTape):
                raise InvalidArgumentError(f"tape is {tape!r}; it must be a tf.GradientTape")
            self.__dict__.update(tape.__dict__)
        scope_of(group)
        self._herring_alone = False  # Whether `gradient` is part of a Jacobian.
        self._herring_name = name
        self._herring_options: dict[str, Any] = {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "sparse": sparse,
            "group": group,
        }

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Computes gradients and averages them over all ranks (collective).

        Args:
          target: the tensor or structure of tensors that is differentiated.
          sources: a nested structure of variables or tensors. Shapes, dtypes and order must be
            equal on all ranks.
          output_gradients: the option of tf.GradientTape.gradient.
          unconnected_gradients: the option of tf.GradientTape.gradient. With NONE, a variable that
            has a gradient on other ranks only contributes zeros to the average.

        Returns:
          Averages in the structure of `sources`.

        Raises:
          InvalidArgumentError: inside tf.distribute, compiled by XLA, or a gradient that cannot be
            averaged.
          MismatchError: the variables differ between ranks.
          PeerLostError, TimeoutError: a rank is gone, or has not called in time.
        """
        if self._herring_alone:
            return super().gradient(target, sources, output_gradients, unconnected_gradients)
        variables = tf.nest.flatten(sources)
        gradients = super().gradient(target, variables, output_gradients, unconnected_gradients)
        averages = self._average(list(gradients), variables)
        return tf.nest.pack_sequence_as(sources, averages)

    @tf.autograph.experimental.do_not_convert
    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """Computes this rank's own Jacobian, without communication.

        The arguments, results and errors are those of tf.GradientTape.jacobian.
        """
        with self._without_averages():
            return super().jacobian(*arguments, **options)

    @tf.autograph.experimental.do_not_convert
    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """Computes this rank's own Jacobian of each example, without communication.

        The arguments, results and errors are those of tf.GradientTape.batch_jacobian.
        """
        with self._without_averages():
            return super().batch_jacobian(*arguments, **options)

    @contextlib.contextmanager
    def _without_averages(self) -> Iterator[None]:
        """Lets `gradient`, which TensorFlow's Jacobians call for each row, exchange nothing."""
        self._herring_alone = True
        try:
            yield
        finally:
            self._herring_alone = False

    def _average(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        return self._averager(variables).average(gradients, variables)

    def _new_averager(self, name: str | None) -> Any:
        options = self._herring_options
        return TensorAverager(name or "tape", numbered=name is None, **options)

    def _averager(self, variables: Sequence[Any]) -> Any:
        options = tuple(self._herring_options.items())
        if self._herring_name is not None:
            return _found(
                _named,
                (self._herring_name, *options),
                lambda: self._new_averager(self._herring_name),
            )

        def make() -> Any:
            return self._new_averager(None)

        if any(not _is_variable(variable) for variable in variables):
            # Tensors are new in each step, so such lists are told apart by dtypes and shapes.
            shapes = tuple((str(v.dtype), tuple(v.shape)) for v in variables)
            return _found(_named, (shapes, *options), make)
        for known in list(_lists):
            if known.is_of(variables):
                return _found(known, options, make)
        _lists.append(_KnownList(variables))
        return _found(_lists[-1], options, make)


def _found(among: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    if key not in among:
        among[key] = made = make()
        if isinstance(made, TensorAverager):
            made.keep()
    return among[key]


def _is_variable(source: Any) -> bool:
    return isinstance(source, tf.Variable) or type(source).__name__ == "Variable"
