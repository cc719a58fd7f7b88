"""Collectives on lists of arrays, as XLA calls them: by a native handler or a Python callback."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import herring.errors
from herring import _core
from herring.arrays import runtime
from herring.arrays.gradients import fresh
from herring.arrays.groups import Group
from herring.elastic.translation import translations
from herring.errors import HerringError, InvalidArgumentError, PeerLostError, TimeoutError
from herring.jax.checkpoints import keep_results
from herring.jax.keys import is_traced, outside_programs
from herring.jax.order import TOKEN
from herring.jax.platforms import FINISH, START, implementation

__all__ = ["Call", "described", "execute", "implementation"]

_LONGEST_END = 10.0  # seconds that programs have to end when Python ends
_NUMBERS = {int: np.int64, float: np.float64}


class Call(NamedTuple):
    """The description of a call site; hashable, because programs are cached by it.

    With ``in_place`` the results overwrite the arrays that they are made of, so that a backward
    pass makes gradients where their averages will be. XLA then copies arrays that are arguments of
    the program. With a ``refusal`` this rank does not make the call, and all ranks get its text.
    ``agreement`` is what ranks must agree about besides the arrays; "" describes the arrays.
    """

    kind: str
    key: str
    op: str = "sum"
    group: Group | None = None
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    timeout: float = 0.0
    in_place: bool = False
    refusal: str = ""
    agreement: str = ""

    def attributes(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Returns the attributes of the call, by the names that the core uses."""
        group = 0 if self.group is None else _core.jax.add_group(self.group.members())
        return {
            "kind": self.kind,
            "key": self.key,
            "op": self.op,
            "group": group,
            "agreement": self.agreement or described(leaves),
            "root": self.root,
            "prescale": float(self.prescale),
            "postscale": float(self.postscale),
            "timeout": float(self.timeout),
            "refusal": self.refusal,
        }


def described(leaves: Sequence[Any]) -> str:
    """Returns dtypes and shapes in words."""
    return ", ".join(f"{leaf.dtype} {list(leaf.shape)}" for leaf in leaves)


def execute(
    call: Call, token: Any, leaves: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Any, ...]:
    """Adds the call to the program that is traced, or outside of a program waits for its results.

    Args:
      token: the token of the call that must be started before; see `herring.jax.order`.
      results: the shapes and dtypes of the results, one for each of `leaves`.

    Returns:
      A token, and an array for each of `results`.

    Raises:
      InvalidArgumentError: this process has several devices, or the call is inside of
        `jax.checkpoint` with a version of JAX that would repeat it.
    """
    devices = jax.local_device_count()
    if devices > 1:
        raise InvalidArgumentError(
            f"this process has {devices} devices, and herring.jax needs one process per device: "
            "start as many processes (jax.config 'jax_num_cpu_devices' and XLA_FLAGS make several "
            "of one CPU)"
        )
    native = implementation() == "ffi"
    attributes = call.attributes(leaves)
    dtypes = [result.dtype for result in results]
    leaves, results = [*map(_carrying, leaves)], [*map(_carrier, results)]
    if jax.default_backend() == "cpu" and outside_programs(leaves):
        # XLA would compile a program for each name, and keep it for ever.
        made = map(jnp.asarray, _Callback(attributes, results)(*leaves))
        return (token, *map(_carried, made, dtypes))
    keep_results(call.kind)
    collective = _traced(native, call.in_place, tuple(attributes.items()), tuple(results))
    try:
        found = collective(token, *leaves)
        if not is_traced(found):
            jax.block_until_ready(found)
            _core.jax.check()  # an operation on a GPU fails after its program
    except jax.errors.JaxRuntimeError as error:
        raise _error_of(error) from None
    token, *made = found
    return (token, *map(_carried, made, dtypes))


def _bits(dtype: Any) -> int:
    """Returns the bits of a dtype that XLA hands over to no library; 0: it hands over others."""
    found = re.match(r"(?:float|u?int)([24]|8(?=_))(?:_|$)", str(dtype))
    return int(found[1]) if found else 0


def _carrying(array: Any) -> Any:
    """Returns an array of a dtype that XLA hands over, as uint8 with the same bits."""
    bits = _bits(array.dtype)
    if not bits:
        return array
    unsigned = jnp.dtype(f"uint{bits}")
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint8)


def _carrier(result: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(result.shape, np.uint8) if _bits(result.dtype) else result


def _carried(array: Any, dtype: Any) -> Any:
    """Returns what `_carrying` was given."""
    bits = _bits(dtype)
    if not bits:
        return array
    return jax.lax.bitcast_convert_type(array.astype(jnp.dtype(f"uint{bits}")), dtype)


@functools.lru_cache(maxsize=1024)  # the same function again is not traced again
def _traced(
    native: bool,
    in_place: bool,
    attributes: tuple[tuple[str, Any], ...],
    results: tuple[jax.ShapeDtypeStruct, ...],
) -> Callable[..., Any]:
    """Returns a function of a token and arrays that makes XLA's calls or the callback's call."""
    given = dict(attributes)

    @jax.custom_batching.custom_vmap
    def collective(token: Any, *arrays: Any) -> Any:
        if native:
            typed = {
                name: value if isinstance(value, str) else _NUMBERS[type(value)](value)
                for name, value in attributes
            }
            aliases = {
                i + 1: i + 1
                for i, (array, result) in enumerate(zip(arrays, results))
                if in_place and (array.shape, array.dtype) == (result.shape, result.dtype)
            }
            start = jax.ffi.ffi_call(
                START, (TOKEN, *results), has_side_effect=True, input_output_aliases=aliases
            )
            finish = jax.ffi.ffi_call(
                FINISH,
                results,
                has_side_effect=True,
                input_output_aliases={i: i for i in range(len(results))},
            )
            token, *places = start(token, *_apart(arrays), **typed)
            found = finish(*places, key=typed["key"], group=typed["group"])
            return (token, *_apart(found))
        # The calls are ordered, because each waits in a thread, and there are few threads.
        found = io_callback(_Callback(given, results), results, *arrays, ordered=True)
        return (token, *found)

    @collective.def_vmap
    def refuse(*_: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"herring.jax.{given['kind']} cannot be mapped by jax.vmap: call it outside, once on "
            "the whole array"
        )

    return collective


def _apart(arrays: Sequence[Any]) -> Sequence[Any]:
    """Keeps XLA for GPUs from fusing a call with slices that make its arrays, or take them.

    XLA then leaves the call itself in the program too, because it has an effect, and makes it
    twice.
    """
    return arrays if jax.default_backend() == "cpu" else jax.lax.optimization_barrier(tuple(arrays))


class _Callback:
    """A collective in Python, instead of the native handler."""

    def __init__(self, attributes: dict[str, Any], results: Sequence[jax.ShapeDtypeStruct]) -> None:
        self._attributes = attributes
        self._results = results

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [np.ascontiguousarray(array) for array in arrays]
        outputs = [fresh(result.shape, result.dtype) for result in self._results]
        _core.jax.run(
            inputs=[_described(array) for array in inputs],
            outputs=[_described(array) for array in outputs],
            **self._attributes,
        )
        return tuple(outputs)


def _described(array: np.ndarray) -> tuple[np.ndarray, str, int, tuple[int, ...]]:
    """Returns bytes, dtype, item size and shape, since NumPy cannot export every dtype."""
    return array.reshape(-1).view(np.uint8), str(array.dtype), array.dtype.itemsize, array.shape


def _error_of(error: Exception) -> Exception:
    """Returns the error that Herring raised inside XLA, or `error` if it was not Herring's."""
    text = str(error).partition("\n----")[0]  # without JAX's text about its own frames
    found = re.search(r"(?:^|herring\.)(\w+Error): (.*)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return error
    kind = getattr(herring.errors, found[1], None)
    if not (isinstance(kind, type) and issubclass(kind, HerringError)):
        return error
    return kind(found[2].strip())


def _loss_behind(error: Exception) -> PeerLostError | TimeoutError | None:
    """Returns the loss of a worker for which a compiled program has failed."""
    found = _error_of(error) if isinstance(error, jax.errors.JaxRuntimeError) else None
    return found if isinstance(found, (PeerLostError, TimeoutError)) else None


def _finish_programs() -> None:
    """Waits for programs before the job ends, because other ranks may need their calls."""
    if hasattr(sys, "last_value"):
        return  # Python ends because of an error, so other ranks may not come
    last = threading.Timer(_LONGEST_END, runtime.shutdown)
    last.daemon = True
    last.start()
    with contextlib.suppress(Exception):  # errors belong to whoever uses the results
        jax.effects_barrier()
    _core.jax.settle(_LONGEST_END)
    last.cancel()


atexit.register(_finish_programs)  # registered after the runtime's, so it runs before that
translations.append(_loss_behind)
runtime.learn_job.append(_core.jax.attach)
runtime.forget_job.append(_core.jax.detach)
os.register_at_fork(after_in_child=_core.jax.forget)
if runtime.is_initialized():
    _core.jax.attach(runtime.job())
