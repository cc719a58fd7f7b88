"""House rules that no linter knows: width of C++ lines, length of files, plain text, rooms.

A room uses only itself and rooms above it in the lists below, in Python as in C++. Every import
counts, in a function and for type checkers too. No circle: modules of one room do not import each
other. No "X | None" where it is evaluated: Python 3.9 has it in annotations only.

Usage: python tools/check_style.py (in the root of the repository). Lists every breach and ends with
status 1 if there is one.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MAXIMUM_COLUMNS = 100
MAXIMUM_LINES = 650  # about 600: a file that wants to grow has two ideas in it
PACKAGE = Path("python/herring")
SOURCES = {".cc", ".h", ".inc", ".py", ".sh", ".cmake"}

# Rooms of the package: modules and packages with all that is in them, but for what has a line of
# its own. `herring` itself is the face that users import.
PYTHON_ROOMS = (
    "herring.errors",
    "herring.split",
    "herring._core",
    "herring.version",
    "herring.parts",
    "herring.provenance",
    "herring.progress",
    "herring.units",
    "herring.models",
    "herring.command_line",
    "herring.habits",
    "herring.rendezvous",
    "herring.arrays",
    "herring",
    "herring.partial",
    "herring.planned",
    "herring.face",
    "herring.launch",
    "herring.bench",
    "herring.torch",
    "herring.autoload",
    "herring.ray",
    "herring.jax",
    "herring.tensorflow",
    "herring.keras",
    "herring.mxnet",
    "herring.horovod.common",
    "herring.horovod.torch",
    "herring.horovod.tensorflow",
    "herring.horovod.keras",
    "herring.horovod.tensorflow.optimizer",
    "herring.horovod.tensorflow.keras",
    "herring.horovod.mxnet",
    "herring.horovod",
    # The distribution herring-dl-lab.
    "herring.report",
    "herring._simulate",
    "herring.simulate",
    "herring.lab",
    "herring.bench.peers",
    "herring.study",
)
# Imports of rooms further down, each where a user asks for an optional part, and why.
OPTIONAL_PARTS = {
    ("herring.launch.cli", "herring.lab"): "herring lab is installed by herring-dl-lab",
    ("herring.launch.cli", "herring.simulate"): "herring simulate is, too",
    ("herring.launch.cli", "herring.study"): "herring study is, too",
    ("herring.bench.cli", "herring.bench.peers"): "--peer is, too",
    ("herring.tensorflow", "herring.keras"): "DistributedOptimizer is for those who have Keras",
}
# The core's rooms stand in CMakeLists.txt in their order; then come those of herring-dl-lab.
CORE_ROOMS = re.compile(r"foreach\(room ([\w ]+)\)")
LAB_ROOMS = ("transport/virtual", "simulate", "lab")


def breaches(path: Path) -> list[str]:
    """What is wrong with the file at `path`."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found = []
    if len(lines) > MAXIMUM_LINES:
        found.append(f"{path}: {len(lines)} lines, allowed are {MAXIMUM_LINES}")
    if text and not text.endswith("\n"):
        found.append(f"{path}:{len(lines)}: no line end at the end of the file")
    for number, line in enumerate(lines, 1):
        if len(line) > MAXIMUM_COLUMNS:
            found.append(f"{path}:{number}: {len(line)} columns, allowed are {MAXIMUM_COLUMNS}")
        if line != line.rstrip():
            found.append(f"{path}:{number}: blanks at the end of the line")
        if "\t" in line:
            found.append(f"{path}:{number}: a tab")
    return found


def evaluated_unions(path: Path) -> list[str]:
    """Where the Python file at `path` has "X | None" outside of annotations."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    annotations = (
        getattr(node, name, None) for node in nodes for name in ("annotation", "returns")
    )
    text = {id(part) for one in annotations if one is not None for part in ast.walk(one)}
    return [
        f"{path}:{node.lineno}: '{ast.unparse(node)}' is evaluated, which needs Python 3.10: "
        "typing.Optional"
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in text
        if any(isinstance(e, ast.Constant) and e.value is None for e in (node.left, node.right))
    ]


def module_name(path: Path) -> str:
    """As ``import`` has it."""
    parts = path.with_suffix("").relative_to(PACKAGE.parent).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    """From where relative imports of a module count."""
    return ".".join(path.parent.relative_to(PACKAGE.parent).parts)


def imports(path: Path, modules: set[str]) -> dict[str, int]:
    """What the file at `path` imports of the package, at any place, with the line.

    Of `modules` the longest name that fits; what the package itself hands on is the package's.
    """
    names: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            where = "." * node.level + (node.module or "")
            where = importlib.util.resolve_name(where, package_of(path))
            found = [f"{where}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [one.value for one in node.args if isinstance(one, ast.Constant)]
        else:
            continue
        for name in found:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                names.setdefault(name, node.lineno)
    return names


def room_of(name: str, rooms: Sequence[str], between: str) -> str:
    """The room of a module or file: the longest of `rooms` that its name begins with."""
    fitting = [room for room in rooms if f"{name}{between}".startswith(f"{room}{between}")]
    return max(fitting, key=len, default="")


def python_arrows(paths: list[Path]) -> list[str]:
    """Imports in the package that run up, modules without a room, and the first circle."""
    named = {module_name(path): path for path in paths if PACKAGE in path.parents}
    modules = {*named, *PYTHON_ROOMS}
    found, graph, used = [], {}, set()
    for name, path in named.items():
        room = room_of(name, PYTHON_ROOMS, ".")
        if room == PACKAGE.name != name:
            found.append(f"{path}: no room; PYTHON_ROOMS in {__file__} has them in their order")
        targets = imports(path, modules)
        for target, line in targets.items():
            where = room_of(target, PYTHON_ROOMS, ".")
            if PYTHON_ROOMS.index(where) <= PYTHON_ROOMS.index(room):
                continue
            if (name, where) in OPTIONAL_PARTS:
                used.add((name, where))
            else:
                found.append(f"{path}:{line}: {target} is of a room below {room}")
        # `import herring` is what a user writes: it loads the module of a name with its first use.
        graph[name] = {*targets} - {name, PACKAGE.name}
    for name, room in OPTIONAL_PARTS.keys() - used:
        found.append(f"OPTIONAL_PARTS: {name} does not import {room}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"{PACKAGE}: modules import each other: {' <- '.join(error.args[1])}")
    return found


def core_arrows(paths: list[Path]) -> list[str]:
    """Includes in `src/` that run up, and files without a room."""
    listed = CORE_ROOMS.search(Path("CMakeLists.txt").read_text(encoding="utf-8"))
    rooms = (*(listed[1].split() if listed else ()), *LAB_ROOMS)
    found = []
    for path in paths:
        room = room_of(path.relative_to("src").as_posix(), rooms, "/")
        if not room:
            found.append(f"{path}: no room; CMakeLists.txt has them in their order")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            include = re.match(r'#include "([^"]+)"', line)
            where = room_of(include[1], rooms, "/") if include else ""
            if where and rooms.index(where) > rooms.index(room):
                found.append(f"{path}:{number}: {where} is a room below {room}")
    return found


def main() -> int:
    """Checks all tracked sources."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, text=True)
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    paths = [path for path in paths if path.suffix in SOURCES and path.is_file()]
    found = [breach for path in paths for breach in breaches(path)]
    sources = [path for path in paths if path.suffix == ".py"]
    found += [union for path in sources for union in evaluated_unions(path)]
    found += python_arrows(sources)
    found += core_arrows([p for p in paths if p.parts[0] == "src" and p.suffix != ".py"])
    print("\n".join(found) if found else f"style: {len(paths)} files are fine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
