"""One collective on a list of arrays, as XLA calls it: a native handler, or a Python callback."""

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
import numpy as np
from jax.experimental import io_callback

import herring.errors
from herring import _core
from herring.arrays import runtime
from herring.arrays.groups import Group
from herring.errors import HerringError, InvalidArgumentError
from herring.jax.keys import is_traced
from herring.jax.order import TOKEN
from herring.jax.platforms import FINISH, START, implementation

__all__ = ["Call", "execute", "implementation"]

_LONGEST_END = 10.0  # seconds that programs have to end, when Python does
_NUMBERS = {int: np.int64, float: np.float64}


class Call(NamedTuple):
    """What a call site says of itself; hashable, since programs are cached by it.

    With ``in_place`` results take the place of what they are made of, so that a backward pass makes
    gradients where their averages will be; arguments of the program are copied then. With a
    ``refusal`` this rank does not make the call: its text is what all ranks get.
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

    def attributes(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """By the names that the core knows them by."""
        group = 0 if self.group is None else _core.jax.add_group(self.group.members())
        return {
            "kind": self.kind,
            "key": self.key,
            "op": self.op,
            "group": group,
            "agreement": ", ".join(f"{leaf.dtype} {list(leaf.shape)}" for leaf in leaves),
            "root": self.root,
            "prescale": float(self.prescale),
            "postscale": float(self.postscale),
            "timeout": float(self.timeout),
            "refusal": self.refusal,
        }


def execute(
    call: Call, token: Any, leaves: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Any, ...]:
    """Makes the call a part of the program that is traced; outside of one, waits for its results.

    Args:
      call: which.
      token: of the call that is to be started before, see `herring.jax.order`.
      leaves: arrays with at least one element each.
      results: shapes and dtypes of what comes out, one for each of `leaves`.

    Returns:
      A token, and an array for each of `results`.

    Raises:
      InvalidArgumentError: this process has several devices.
      HerringError: outside of a program: the operation failed.
    """
    devices = jax.local_device_count()
    if devices > 1:
        raise InvalidArgumentError(
            f"this process has {devices} devices, and herring.jax needs one process per device: "
            "start as many processes (jax.config 'jax_num_cpu_devices' and XLA_FLAGS make several "
            "of one CPU)"
        )
    collective = _traced(
        implementation() == "ffi",
        call.in_place,
        tuple(call.attributes(leaves).items()),
        tuple(results),
    )
    try:
        found = collective(token, *leaves)
        if not is_traced(found):
            jax.block_until_ready(found)
            _core.jax.check()  # an operation on a GPU fails after its program
    except jax.errors.JaxRuntimeError as error:
        raise _error_of(error) from None
    return tuple(found)


@functools.lru_cache(maxsize=1024)  # the same function again is not traced again
def _traced(
    native: bool,
    in_place: bool,
    attributes: tuple[tuple[str, Any], ...],
    results: tuple[jax.ShapeDtypeStruct, ...],
) -> Callable[..., Any]:
    """What takes a token and arrays, returns as many, and is two calls of XLA's."""
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
            token, *places = start(token, *arrays, **typed)
            return (token, *finish(*places, key=typed["key"], group=typed["group"]))
        # In order: each waits in a thread, of which there are few.
        found = io_callback(_Callback(given, results), results, *arrays, ordered=True)
        return (token, *found)

    @collective.def_vmap
    def refuse(*_: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"herring.jax.{given['kind']} cannot be mapped by jax.vmap: call it outside, once on "
            "the whole array"
        )

    return collective


class _Callback:
    """What Python does instead of the native handler."""

    def __init__(self, attributes: dict[str, Any], results: Sequence[jax.ShapeDtypeStruct]) -> None:
        self._attributes = attributes
        self._results = results

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [np.ascontiguousarray(array) for array in arrays]
        outputs = [np.empty(result.shape, result.dtype) for result in self._results]
        _core.jax.run(
            inputs=[_described(array) for array in inputs],
            outputs=[_described(array) for array in outputs],
            **self._attributes,
        )
        return tuple(outputs)


def _described(array: np.ndarray) -> tuple[np.ndarray, str, int, tuple[int, ...]]:
    """Its bytes, dtype, those of one element, and its shape; NumPy need not export its dtype."""
    return array.reshape(-1).view(np.uint8), str(array.dtype), array.dtype.itemsize, array.shape


def _error_of(error: Exception) -> Exception:
    """What Herring has raised inside of XLA."""
    text = str(error).partition("\n----")[0]  # what JAX says about its own frames
    found = re.search(r"(?:^|herring\.)(\w+Error): (.*)", text, re.DOTALL | re.MULTILINE)
    kind = getattr(herring.errors, found[1], None) if found else None
    if not (isinstance(kind, type) and issubclass(kind, HerringError)):
        return error
    return kind(found[2].strip())


def _finish_programs() -> None:
    """At the end of Python, before the job ends: other ranks may need what programs still call."""
    if hasattr(sys, "last_value"):
        return  # it ends because of an error, and others may not come
    last = threading.Timer(_LONGEST_END, runtime.shutdown)
    last.daemon = True
    last.start()
    with contextlib.suppress(Exception):  # whoever wants results gets their errors
        jax.effects_barrier()
    _core.jax.settle(_LONGEST_END)
    last.cancel()


atexit.register(_finish_programs)  # behind runtime's own, so it is called before that
runtime.learn_job.append(_core.jax.attach)
runtime.forget_job.append(_core.jax.detach)
os.register_at_fork(after_in_child=_core.jax.forget)
if runtime.is_initialized():
    _core.jax.attach(runtime.job())
