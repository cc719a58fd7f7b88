"""Pickles and copies an error of every class that the package and its adapters raise.

Adapters of frameworks that are not installed are left out.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import herring
from herring.errors import HerringError

VALUES = {"str": "what has happened", "int": 77, "bool": True}


def import_everything() -> None:
    for module in pkgutil.walk_packages(herring.__path__, "herring.", onerror=lambda _: None):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:  # of a framework
            assert not str(error).startswith("cannot import"), error


def classes(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("herring."):
            yield kind
        yield from classes(kind)


def made(kind: type) -> BaseException:
    """Returns an error of the class, made as the package makes it: with all that it needs."""
    wanted = ["what has happened"]
    if inspect.isfunction(kind.__init__):
        _, *own = inspect.signature(kind.__init__).parameters.values()
        wanted = [VALUES[each.annotation] for each in own]
    error = kind(*wanted)
    error.noticed = {"rank": 3}
    if hasattr(error, "add_note"):
        error.add_note("a note of whoever passed it on")
    return error


def described(error: BaseException) -> tuple[Any, ...]:
    return type(error), str(error), repr(error), error.args, vars(error)


def tensorflows() -> Iterator[BaseException]:
    """Yields errors of the classes that TensorFlow's adapter makes where it converts errors."""
    try:
        from herring.horovod.common.exceptions import internal_errors
        from herring.horovod.tensorflow.errors import tensorflow_errors
    except ImportError:
        return
    for kind in (herring.MismatchError, herring.InvalidArgumentError):
        try:
            with tensorflow_errors(), internal_errors():
                raise kind("what has happened")
        except kind as error:
            error.noticed = {"rank": 3}
            yield error


ways: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy}
for number in range(pickle.HIGHEST_PROTOCOL + 1):
    ways[f"pickle {number}"] = lambda error, number=number: pickle.loads(
        pickle.dumps(error, number)
    )

import_everything()
errors = [*map(made, dict.fromkeys(classes(BaseException))), *tensorflows()]
wrong = []
for error in errors:
    for way, again in ways.items():
        try:
            came, expected = described(again(error)), described(error)
        except Exception as failure:
            wrong.append(f"{type(error)}, {way}: {type(failure).__name__}: {failure}")
        else:
            if came != expected:
                wrong.append(f"{type(error)}, {way}: {came} instead of {expected}")
assert not wrong, "\n".join(wrong)
found = {type(error).__qualname__ for error in errors if isinstance(error, HerringError)}
assert {"HerringError", "CommandError", "NotInitializedError", "StatusError"} <= found, found
