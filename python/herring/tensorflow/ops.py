"""TensorFlow operations that call Python functions with the memory of tensors.

`read` passes tensors to a function, `update` lets a function write results into them, and `after`
holds a tensor back until a function has returned. Where the library with the operations cannot be
loaded, `tf.numpy_function` is used, whose results are new arrays.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import functools
import importlib.util
import itertools
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from herring.arrays.gradients import fresh
from herring.elastic.translation import translations
from herring.errors import InvalidArgumentError, PeerLostError, TimeoutError
from herring.rendezvous.settings import value_of

# A function gets one array for each tensor, which is writable in an update.
Function = Callable[[list[np.ndarray]], None]

_SHOWN = 200  # of the text of an error; TensorFlow's shows at least so much of it


class _Kept:
    """Keeps a function as long as something refers to this object."""

    __slots__ = ("__weakref__", "function")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


# Operations know functions by their numbers. TensorFlow keeps most graphs for ever. If they kept
# functions, they would keep the memory of averages of models that are gone.
_functions: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()
_lasting: list[_Kept] = []  # Functions without an owner; graphs may run them at any time.
_numbers = itertools.count()
_losses: collections.deque[PeerLostError | TimeoutError] = collections.deque(maxlen=8)
Called = TypeVar("Called", bound=Callable[..., Any])


def remember(function: Called) -> Called:
    """Makes a function for a graph remember a loss that it raises.

    TensorFlow makes another error of what it raises. `herring.elastic.run` goes on after the loss.
    """

    @functools.wraps(function)
    def remembering(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (PeerLostError, TimeoutError) as error:
            _losses.append(copy.copy(error))  # without the frames of its traceback
            raise

    return remembering  # type: ignore[return-value]


def _loss_behind(error: Exception) -> PeerLostError | TimeoutError | None:
    if not isinstance(error, tf.errors.OpError):
        return None
    for loss in reversed(_losses):
        if str(loss)[:_SHOWN] in error.message:
            return loss
    return None


translations.append(_loss_behind)


class _Array(ctypes.Structure):
    """The struct `Array` of bindings/tensorflow/ops.cc."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


def _view(array: _Array) -> np.ndarray:
    dtype = tf.as_dtype(array.dtype).as_numpy_dtype
    shape = array.dims[: array.rank]
    if array.bytes == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * array.bytes).from_address(array.data)
    return np.frombuffer(memory, dtype).reshape(shape)


@ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.POINTER(_Array),
    ctypes.c_void_p,
    ctypes.c_int64,
)
def _call(number: int, count: int, arrays: Any, text: int, room: int) -> int:
    try:
        _function(number)([_view(arrays[i]) for i in range(count)])
    except BaseException as error:  # no exception may leave a C callback
        said = f"{type(error).__name__}: {error}".encode()[: room - 1] + b"\0"
        ctypes.memmove(text, said, len(said))
        return 1
    return 0


@functools.cache
def _operations() -> Any:
    """Returns the module with the operations, or None if it cannot be loaded."""
    chosen = value_of(os.environ, "HERRING_TENSORFLOW_IMPL")
    library = importlib.util.find_spec("herring.tensorflow._ops")
    if chosen == "function" or library is None or library.origin is None:
        return None
    try:
        operations = tf.load_op_library(library.origin)
    except (tf.errors.OpError, OSError) as error:
        warnings.warn(
            "TensorFlow does not load Herring's native operations; averages go by "
            f"tf.numpy_function, which copies more and keeps a thread while it waits ({error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    ctypes.CDLL(library.origin).herring_tensorflow_attach(_call)
    return operations


@functools.cache
def _asynchronous() -> bool:
    """Returns whether TensorFlow's callback type is the one that the native code expects."""
    header = Path(tf.sysconfig.get_include(), "tensorflow", "core", "framework", "op_kernel.h")
    try:
        return "typedef std::function<void()> DoneCallback;" in header.read_text()
    except OSError:
        return False


def _add(function: Callable[..., Any], owner: Any) -> int:
    number, kept = next(_numbers), _Kept(remember(function))
    _functions[number] = kept
    if owner is None:
        _lasting.append(kept)
    else:
        owner.__dict__.setdefault("_functions_of_graphs", []).append(kept)
    return number


def _function(number: int) -> Callable[..., Any]:
    kept = _functions.get(number)
    if kept is None:
        raise InvalidArgumentError(
            "the optimizer or averager whose gradients this function averages was deleted; keep it "
            "as long as the function"
        )
    return kept.function


def owned(function: Callable[..., Any], owner: Any) -> Callable[..., Any]:
    """Returns a function for tf.numpy_function that calls `function`, and does not keep it alive.

    Args:
      function: the function to call. It refers to `owner` or to its memory.
    """
    number = _add(function, owner)
    return lambda *arrays: _function(number)(*arrays)


def read(
    function: Function, tensors: Sequence[tf.Tensor], *, owner: Any = None
) -> tf.Operation | tf.Tensor:
    """Adds to a graph an operation that calls a function with tensors.

    Stateful operations of a graph are executed in the order in which they were added.

    Args:
      function: gets the tensors' memory as arrays, which are valid during the call only. If it
        raises, TensorFlow raises tf.errors.UnknownError with the name and text of the error.
      owner: an object that keeps the function, and lives as long as graphs run it; None: the
        function is kept for ever.

    Returns:
      An operation or a tensor, for control dependencies.
    """
    operations = _operations()
    if operations is not None:
        return operations.herring_read(tensors, call=_add(function, owner))

    def call(*arrays: np.ndarray) -> np.int32:
        function([np.asarray(array) for array in arrays])  # scalars come as scalars
        return np.int32(0)

    return tf.numpy_function(owned(call, owner), list(tensors), tf.int32, stateful=True)


def update(
    function: Function, tensors: Sequence[tf.Tensor], *, copies: bool = True, owner: Any = None
) -> list[tf.Tensor]:
    """Adds to a graph an operation that has a function write into tensors, or copies of them.

    Args:
      function: gets writable arrays, which are valid during the call only; it may raise.
      tensors: their dtypes and shapes are those of the results. The result uses the memory of its
        tensor if nothing else in the graph needs the tensor.
      copies: whether the arrays begin with the tensors' content; otherwise it is undefined.
      owner: an object that keeps the function, and lives as long as graphs run it; None: the
        function is kept for ever.

    Returns:
      The results, one tensor for each of `tensors`.
    """
    if not tensors:
        read(function, [], owner=owner)  # it is called all the same
        return []
    operations = _operations()
    if operations is not None:
        kind = "herring_update_async" if _asynchronous() else "herring_update"
        results = getattr(operations, kind)(tensors, call=_add(function, owner), copies=copies)
    else:

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            new = [fresh(array.shape, array.dtype) for array in arrays]
            if copies:
                for one, array in zip(new, arrays):
                    one[...] = array
            function(new)
            return new

        dtypes = [tensor.dtype for tensor in tensors]
        results = tf.numpy_function(owned(call, owner), list(tensors), dtypes, stateful=True)
    for result, tensor in zip(results, tensors):
        result.set_shape(tensor.shape)
    return list(results)


def after(function: Function, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that is ready once a function has returned, which keeps no thread meanwhile.

    Other operations do not wait for it, not even stateful ones. Where TensorFlow has no such
    operations, the tensor itself is returned, and the function is not called.

    Args:
      function: gets the tensor's memory as the only array. It is kept for ever.
    """
    operations = _operations()
    if operations is None or not _asynchronous():
        return tensor
    (result,) = operations.herring_wait([tensor], call=_add(function, None), copies=True)
    result.set_shape(tensor.shape)
    return result
