"""What a program does, told from the places in its call stack: a short text, and a cause.

Everything here is pure. `herring.process.stacks` takes the stack of a running thread.

The text names the innermost place in the user's own files and, if the program is inside a library
there, a function of the library: ``train.py:40 in main, inside
torch/utils/data/dataloader.py:1234 _try_get_data``. The cause says why others might wait for this
program. The table of libraries in libraries.json decides it, to which lines may be added.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass

from herring.base.parts import data_file

COMPUTE, INPUT = "compute", "input"  # the other causes are those of the table

# Whoever is inside one of these waits for another thread or process.
_WAITING = ("asyncio", "concurrent.futures", "queue", "selectors", "threading")
_GENERATED = ("/torchinductor_", "__autograph_generated_file")
_CELLS = re.compile(r"/ipykernel_\d+/|/\.ipykernel/\d+/|<ipython-input-|<command-")
_LONGEST = 240  # characters of a text

# The names of functions that count in a module, or none if all do; and the cause that they tell.
_Rows = dict[str, list[tuple[tuple[str, ...], str]]]


def _by_module(table: dict[str, list[str]]) -> _Rows:
    rows: _Rows = {}
    for cause, modules in table.items():
        for module, _, functions in (each.partition(":") for each in modules):
            rows.setdefault(module, []).append((tuple(functions.split()), cause))
    return rows


_LIBRARIES = data_file("process/libraries.json")
_ROWS, _WEAK_ROWS, _EVALUATION_ROWS = (
    _by_module(_LIBRARIES[name]) for name in ("decides", "otherwise", "evaluates")
)
_CALLS = {call: cause for cause, calls in _LIBRARIES["calls"].items() for call in calls}
_GLUE = frozenset(_LIBRARIES["glue"])
# Modules of libraries whose functions tell a cause.
KNOWN_MODULES = frozenset({*_ROWS, *_WEAK_ROWS, *_EVALUATION_ROWS})
_PATHS = sysconfig.get_paths()
_STANDARD = tuple({os.path.join(_PATHS[key], "") for key in ("stdlib", "platstdlib")})
_PACKAGES = tuple({os.path.join(_PATHS[key], "") for key in ("purelib", "platlib")})
_HERRING = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SITES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True)
class Place:
    """A line in a function that is on the stack."""

    path: str  # the file
    line: int  # the line in it
    function: str  # the function's name
    module: str = ""  # the name of the module in which it runs
    # The full name of the function in C that it calls, as far as `cause_of_call` knows it.
    calls: str = ""

    @property
    def is_herring(self) -> bool:
        """Whether this is Herring's own code."""
        return self.path.startswith(_HERRING)

    @property
    def is_standard(self) -> bool:
        """Whether this is Python's standard library."""
        frozen = self.path.startswith("<frozen ")
        return frozen or (self.path.startswith(_STANDARD) and not self._in_site())

    @property
    def is_users(self) -> bool:
        """Whether this is the user's own code."""
        if _CELLS.search(self.path):
            return True
        if self.path.startswith("<"):
            return self.module == "__main__"
        library = self.is_herring or self.is_standard or self._in_site()
        return not library and not any(mark in self.path for mark in _GENERATED)

    def _in_site(self) -> bool:
        return self.path.startswith(_PACKAGES) or any(site in self.path for site in _SITES)

    def __str__(self) -> str:
        """Returns "train.py:40 in load", or for a library "torch/serialization.py:900 save"."""
        if self.is_users:
            name = "cell" if _CELLS.search(self.path) else os.path.basename(self.path)
            inside = "" if self.function == "<module>" else f" in {self.function}"
            return f"{name}:{self.line}{inside}"
        path = self.path
        for root in (*_SITES, *_PACKAGES, *_STANDARD):
            path = path.rpartition(root)[2]
        return f"{path}:{self.line} {self.function}"


@dataclass(frozen=True)
class Activity:
    """What a thread does."""

    text: str = ""  # where it is
    # "compute", "input", "checkpoint", "compile" or "evaluation"; empty if it waits.
    cause: str = ""
    waits: bool = True  # whether it waits for Herring or for another thread


def cause_of_call(name: str) -> str:
    """Returns the cause that a call of a function in C tells, such as "os.fsync"; or nothing."""
    return _CALLS.get(name, "")


def describe(places: Sequence[Place]) -> Activity:
    """Returns what a thread does, from its stack, the innermost place first."""
    if not places:
        return Activity()
    users = next((i for i, place in enumerate(places) if place.is_users), None)
    if users is None:
        if any(place.module.startswith("ipykernel.") for place in places):
            return Activity("no cell of the notebook runs")
        # An installed program, such as `python -m tool`.
        users = next((i for i, place in enumerate(places) if place.module == "__main__"), None)
    inner = places if users is None else places[:users]
    called = next((place for place in inner if not place.is_standard), None)
    if called is not None and called.is_herring:
        return Activity(_text(places, users, "Herring"))
    found = _find(places, _ROWS) or _find(places, _WEAK_ROWS)
    cause, matched = found or (COMPUTE, None)
    if cause in (COMPUTE, INPUT) and (evaluates := _find(places, _EVALUATION_ROWS)):
        cause, matched = evaluates[0], matched or evaluates[1]
    inside = _notable(inner, matched)
    if not found and users == 0 and (by_call := cause_of_call(places[0].calls)):
        cause = by_call if cause == COMPUTE else cause
        inside = places[0].calls
    waits = cause == COMPUTE and _within(places[0].module, _WAITING)
    return Activity(_text(places, users, inside), "" if waits else cause, waits)


def _find(places: Sequence[Place], rows: _Rows) -> tuple[str, Place] | None:
    """Returns the cause that the innermost known library function tells, and its place."""
    for place in places:
        if place.is_users or place.is_herring:
            continue
        module = place.module
        while module:
            for functions, cause in rows.get(module, ()):
                if not functions or place.function in functions:
                    return cause, place
            module = module.rpartition(".")[0]
    return None


def _notable(inner: Sequence[Place], matched: Place | None) -> str:
    """Returns the function that tells most of those that the user's code has called."""
    if matched in inner and matched is not None:
        package = matched.module.partition(".")[0]
        return str(next(place for place in inner if place.module.partition(".")[0] == package))
    for place in inner:
        if not place.is_standard and place.module not in _GLUE:
            return str(place)
    # In the standard library it is the function that the user's code has called itself.
    return str(inner[-1]) if inner and inner[-1].is_standard else ""


def _text(places: Sequence[Place], users: int | None, inside: str) -> str:
    if users is None:
        text = inside or str(places[0])
    else:
        text = f"{places[users]}, inside {inside}" if inside else str(places[users])
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _within(module: str, parents: Sequence[str]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)
