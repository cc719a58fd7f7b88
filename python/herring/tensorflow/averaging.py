"""Averages lists of gradients over all ranks, in graphs and eagerly."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.arrays.arguments import Operator
from herring.arrays.gradients import Averager, GradientRounds, Source
from herring.arrays.grouped import grouped_allgather
from herring.arrays.groups import Group
from herring.arrays.wire import WireDType
from herring.base.units import counted
from herring.errors import InvalidArgumentError
from herring.tensorflow.copies import say_copies
from herring.tensorflow.graphs import has_no_order, name_of_use
from herring.tensorflow.ops import owned, read, update
from herring.tensorflow.xla import refuse_xla

# A graph hands over gradients in batches of at least this many bytes. Each batch costs a call of
# Python, and the first batches are under way while the backward pass still computes the others.
_BATCH_BYTES = 1 << 20


class TensorAverager(Averager):
    """Averages the gradients of one optimizer, or of one list of variables.

    A list with other variables, shapes or dtypes is planned when it is first seen. A function that
    is traced again finds the plan of its list. The order in which TensorFlow executes a graph does
    not matter, because a gradient is identified by its place in the list. The plan has the order in
    which the first rank's backward pass produced the gradients, or added them to the graph, when
    the list was first seen.

    In an elastic job a function that was traced in one generation averages in all others, too: its
    lists are planned when they are first averaged in a generation, and not when they are traced.

    In a graph of tf.compat.v1 each call has its own plan, because TensorFlow may execute two calls
    in any order there.
    """

    def __init__(
        self,
        name: str,
        *,
        op: Operator = "average",
        wire_dtype: WireDType | None = None,
        buffer_bytes: int = 0,
        sparse: str = "densify",
        group: Group | None = None,
        divide_by_all: bool = False,
        numbered: bool = False,
    ) -> None:
        """Creates an averager; plans are made at the first call.

        Args:
          name: the name of the operations; the same on all ranks, different for each averager.
          op: "average" or "sum".
          wire_dtype: "float16" or "bfloat16": float32 gradients travel between nodes in it. "fp8",
            "fp8_e5m2" or "int8": all do, with a scale for each 32 numbers. A pair such as
            ``("fp8", "bfloat16")``: averages come back in the second.
          buffer_bytes: size of a fusion buffer; 0: chosen by the plan.
          sparse: "densify" converts tf.IndexedSlices to dense tensors; "gather" concatenates the
            slices of all ranks.
          divide_by_all: whether averages divide by the number of all ranks, also in rounds to which
            some do not contribute.
          numbered: whether `name` is the same for several averagers, which get numbers.

        Raises:
          InvalidArgumentError: `sparse` or `op` is unknown.
          ShutdownError: `herring.init` was not called.
        """
        if sparse not in ("densify", "gather"):
            raise InvalidArgumentError(f"sparse must be 'densify' or 'gather', not {sparse!r}")
        super().__init__(
            name,
            op=op,
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
            group=group,
            divide_by_all=divide_by_all,
            numbered=numbered,
        )
        self._sparse = sparse
        # Functions of graphs live as long as this averager, unless its caller may drop it before.
        self._owner = self if tf.executing_eagerly() else None

    def keep(self) -> None:
        """Says that the caller keeps this averager as long as functions that average with it."""
        self._owner = self

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients over all ranks (collective).

        Args:
          gradients: for each variable a tensor, tf.IndexedSlices or None.
          variables: tf.Variable, keras.Variable or tensors, in the same order on all ranks.

        Returns:
          For each variable the average, or None if no rank had a gradient in the first call.

        Raises:
          InvalidArgumentError: compiled by XLA, inside tf.distribute, or a gradient that cannot
            be averaged.
          MismatchError: the variables differ between ranks.
          ShutdownError: the job in which this was made has ended.
          PeerLostError, TimeoutError: a rank is gone or does not come. From a graph TensorFlow
            raises tf.errors.UnknownError with the same text.
        """
        lasts = self.follows and not tf.executing_eagerly() and not has_no_order()
        if not lasts and self._is_alone():
            return list(gradients)
        if len(gradients) != len(variables):
            raise InvalidArgumentError(
                f"{self.name}: {counted(len(gradients), 'gradient')} for "
                f"{counted(len(variables), 'variable')}"
            )
        if tf.distribute.has_strategy():
            raise InvalidArgumentError(
                f"{self.name}: inside a tf.distribute strategy; start one process per device "
                "instead, and let Herring average over the processes"
            )
        if not tf.executing_eagerly():
            refuse_xla(self.name)
        use = self.name if tf.executing_eagerly() else name_of_use(self.name)
        say_copies("herring.tensorflow, averages of gradients", gradients)
        result: list[Any] = list(gradients)
        slices = [
            i
            for i, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices) and self._sparse == "gather"
        ]
        dense = [i for i in range(len(variables)) if i not in slices]
        averages = self._average_dense(
            [gradients[i] for i in dense], [variables[i] for i in dense], use, lasts
        )
        for i, average in zip(dense, averages):
            result[i] = average
        if slices:
            gathered = self._gather([gradients[i] for i in slices], use)
            for i, one in zip(slices, gathered):
                result[i] = one
        return result

    def _average_dense(
        self, gradients: list[Any], variables: list[Any], use: str, lasts: bool
    ) -> list[Any]:
        if not variables:
            return []
        sources = tuple(source_of(variable) for variable in variables)
        tensors = {
            i: tf.cast(tf.convert_to_tensor(gradient), sources[i].dtype)
            for i, gradient in enumerate(gradients)
            if gradient is not None
        }

        def plan(name: str, order: list[int] | None = None) -> GradientRounds:
            order = _order(gradients) if order is None else order
            return GradientRounds(sources, list(tensors), name=name, order=order, **self._options)

        averages: list[Any] = [None] * len(gradients)
        used: list[int]
        if lasts:
            order = _order(gradients)
            lasting = _Lasting(self, sources, list(tensors), order, lambda name: plan(name, order))
            used, found = lasting.used, _add_to_graph(lasting, tensors, self._owner)
        else:
            rounds = self._rounds_of(sources if self.follows else (use, sources), plan)
            used = rounds.used
            if tf.executing_eagerly():
                found = _run_eagerly(rounds, tensors)
            else:
                found = _add_to_graph(rounds, tensors, self._owner)
        for i, average in zip(used, found):
            averages[i] = average
        return averages

    def _gather(self, gradients: list[tf.IndexedSlices], use: str) -> list[tf.IndexedSlices]:
        """Concatenates slices over all ranks; values are divided by the number of ranks."""
        flat = [part for one in gradients for part in (one.values, one.indices)]
        dtypes = [part.dtype for part in flat]

        # Traced functions may go on with another number of ranks, so they ask for it in each step.
        def exchange(*arrays: np.ndarray) -> list[Any]:
            divisor = 1
            if self._is_alone():
                return [*arrays, np.int32(divisor)]
            if self._options["op"] == "average":
                divisor = self._size
            name = f"{self.name if self.follows else use}.slices"
            halves = [a.view(np.int16) if a.dtype.name == "bfloat16" else a for a in arrays]
            wholes = grouped_allgather(halves, name=name, group=self._options["group"])
            found = [whole.view(array.dtype) for whole, array in zip(wholes, arrays)]
            return [*found, np.int32(divisor)]

        if tf.executing_eagerly():
            found = [tf.convert_to_tensor(a) for a in exchange(*(part.numpy() for part in flat))]
        else:
            call = owned(exchange, self._owner)
            found = tf.numpy_function(call, flat, [*dtypes, tf.int32], stateful=True)
            for one, part in zip(found, flat):
                one.set_shape([None, *part.shape[1:]])
            found[-1].set_shape([])
        divisor = found.pop()
        return [
            tf.IndexedSlices(
                values / tf.cast(divisor, values.dtype), indices, dense_shape=one.dense_shape
            )
            for one, values, indices in zip(gradients, found[::2], found[1::2])
        ]


class _Lasting:
    """The rounds of one list in a traced function, which lasts longer than a generation.

    Ranks that have come trace the function anew, and others do not. So ranks agree on the list when
    they first average it in a generation, and the function has a place for each own gradient.

    Attributes:
      used: their indices that have a gradient on this rank, ascending.
      order: the indices in the order in which the gradients were added to the graph.
    """

    def __init__(
        self,
        averager: TensorAverager,
        sources: Sequence[Source],
        present: list[int],
        order: list[int],
        plan: Callable[[str], GradientRounds],
    ) -> None:
        self.sources = sources
        self.used = sorted(present)
        self.order = order
        self._averager = averager
        self._plan = plan
        self._lock = threading.Lock()

    def _now(self) -> GradientRounds | None:
        """Returns the rounds of the present generation (collective), or None: alone in it."""
        with self._lock:
            if self._averager._is_alone():
                return None
            rounds: GradientRounds = self._averager._rounds_of(tuple(self.sources), self._plan)
        if rounds.used != self.used:
            more = next(i for i in rounds.used if i not in self.used)
            raise InvalidArgumentError(
                f"{rounds.name}: {self.sources[more].name!r} has a gradient on another rank, and "
                "none on this one; in an elastic job all ranks need gradients for the same "
                "variables, so add 0 * tf.reduce_sum(variable) to the loss"
            )
        return rounds

    def put(self, indices: Sequence[int], arrays: Sequence[Any]) -> None:
        """Puts gradients in their places in this round."""
        rounds = self._now()
        if rounds is not None:
            rounds.put(indices, arrays)

    def finish_into(self, arrays: Sequence[Any]) -> None:
        """Replaces the gradients in the arrays with the averages."""
        rounds = self._now()
        if rounds is not None:
            rounds.finish_into(arrays)


def source_of(variable: Any) -> Source:
    """Returns the description of a variable or tensor, whose shape must be known."""
    shape = tf.TensorShape(variable.shape)
    name = getattr(variable, "path", None) or getattr(variable, "name", "a tensor")
    if not shape.is_fully_defined():
        raise InvalidArgumentError(f"{name!r} has shape {shape}; it must be known")
    return Source(str(name), tuple(shape.as_list()), tf.as_dtype(variable.dtype).name)


def _order(gradients: Sequence[Any]) -> list[int]:
    """Returns the indices of gradients in the order in which they were made.

    TensorFlow numbers eager tensors as they are made. A graph lists its operations in the order in
    which the backward pass added them. Among the gradients of one operation, the last in the list
    comes first.
    """
    made = {
        i: one.values if isinstance(one, tf.IndexedSlices) else tf.convert_to_tensor(one)
        for i, one in enumerate(gradients)
        if one is not None
    }
    if tf.executing_eagerly():
        age = {i: one._id for i, one in made.items()}
    else:
        operations = tf.compat.v1.get_default_graph().get_operations()
        places = {operation.name: place for place, operation in enumerate(operations)}
        age = {i: places.get(one.op.name, -1) for i, one in made.items()}  # -1: not in the graph
    return sorted(made, key=lambda i: (age[i], -i))


def _host(tensor: tf.Tensor) -> np.ndarray:
    """Returns an eager tensor's content, without a copy if that is possible."""
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, BufferError, ValueError):  # the tensor is on a GPU, or bfloat16
        return tensor.numpy()


def _run_eagerly(rounds: GradientRounds, tensors: dict[int, tf.Tensor]) -> list[tf.Tensor]:
    averages = rounds.average(list(tensors), [_host(tensor) for tensor in tensors.values()])
    return [tf.convert_to_tensor(average) for average in averages]


def _batches(rounds: GradientRounds | _Lasting, tensors: dict[int, tf.Tensor]) -> list[list[int]]:
    """Cuts the gradients into batches, in the order of the plan; others come last."""
    batches: list[list[int]] = []
    left = 0
    more = sorted(tensors.keys() - set(rounds.order), reverse=True)
    for index in [*(i for i in rounds.order if i in tensors), *more]:
        source = rounds.sources[index]
        if left <= 0:
            batches.append([])
            left = _BATCH_BYTES
        batches[-1].append(index)
        left -= math.prod(source.shape) * tensors[index].dtype.size
    return batches


def _add_to_graph(
    rounds: GradientRounds | _Lasting, tensors: dict[int, tf.Tensor], owner: TensorAverager | None
) -> list[tf.Tensor]:
    """Adds one operation for each batch, and one that waits for all averages."""
    done = [
        read(functools.partial(rounds.put, batch), [tensors[i] for i in batch], owner=owner)
        for batch in _batches(rounds, tensors)
    ]
    places = [
        tensors[i] if i in tensors else tf.zeros(rounds.sources[i].shape, rounds.sources[i].dtype)
        for i in rounds.used
    ]
    with tf.control_dependencies(done):
        # A rank that is alone in a later generation leaves its gradients as they are.
        again = isinstance(rounds, _Lasting)
        return update(rounds.finish_into, places, copies=again, owner=owner)
