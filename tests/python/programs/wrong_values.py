"""Calls functions with values of wrong types, and collects errors that are not Herring's own.

Some values are wrong for every parameter; others are right for some parameters only.
"""

from __future__ import annotations

import inspect

import numpy as np

import herring


class Odd:
    def __repr__(self):
        raise RuntimeError("no repr")


def a_function(*_):
    return 0


VALUES = [
    None,
    Odd(),
    object(),
    "text",
    "",
    "\udc80",
    "x" * 600,
    b"bytes",
    5,
    -1,
    1 << 40,
    1 << 70,
    1.5,
    float("nan"),
    float("-inf"),
    True,
    [],
    {},
    (1, 2),
    [None],
    ["a"],
    {"a": 1},
    1 + 2j,
    a_function,
    int,
    np.ones(3, np.complex64),
    np.array(["a"]),
    np.array([object()]),
    np.ones((2, 2)).T[:, ::2],
    np.float32(2),
    np.ones(2, ">f4"),
    range(3),
    slice(3),
]
INSIDES = (
    "incompatible function",
    "argument types are supported",
    "nanobind",
    "std::",
    "DLPack array of code",
    "_core",
    "NoneType: None",
)

found = []


def attempt(where, value, call, arguments):
    """Makes the call, and adds errors that are not Herring's or not readable to `found`."""
    try:
        call(**arguments)
    except herring.HerringError as error:
        text = str(error)
        if not text or any(one in text for one in INSIDES):
            found.append(f"{where} = {kind(value)}: {type(error).__name__}: {text}")
    except Exception as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        found.append(f"{where} = {kind(value)}: {type(error).__name__}: {text}")


def kind(value):
    shown = "" if isinstance(value, Odd) else " ".join(repr(value).split())[:60]
    return f"{type(value).__name__} {shown}"


def fuzz(where, call, usual, skipped=frozenset()):
    """Calls a function with every value for each of its parameters except the skipped ones.

    `usual` makes right values for the other parameters.
    """
    known = inspect.signature(call).parameters
    given = {name: make for name, make in usual.items() if name in known}
    missing = [
        name
        for name, one in known.items()
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and name not in given
    ]
    assert not missing, (where, missing)
    for name, one in known.items():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or name in skipped:
            continue
        for value in VALUES:
            if name == "timeout" and isinstance(value, int) and value > 5:
                continue  # valid timeouts, for which a receive would wait
            arguments = {key: make() for key, make in given.items()}
            arguments[name] = value
            attempt(f"{where}({name})", value, call, arguments)


def short():
    return 0.01
