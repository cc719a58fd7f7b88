"""House rules that no linter knows: width of C++ lines, length of files, plain text, rooms.

A room uses only itself and rooms above it in the lists below, in Python as in C++. Every import
counts, in a function and for type checkers too. No circle: modules of one room do not import each
other.

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
# The trainer's package and the laboratory's.
PACKAGES = (Path("python/herring"), Path("lab/python/herring_lab"))
SOURCES = {".cc", ".h", ".inc", ".py", ".sh", ".cmake"}

# Rooms of the package: modules and packages with all that is in them, but for what has a line of
# its own. `herring` itself is the face that users import.
PYTHON_ROOMS = (
    "herring.errors",
    "herring.split",
    "herring._core",
    "herring.logs",
    "herring.program",
    "herring.stacks",
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
    "herring.observe",
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
    "herring_lab",
    "herring_lab.report",
    "herring_lab._simulate",
    "herring_lab.simulate",
    "herring_lab.emulate",
    "herring_lab.competitors",
    "herring_lab.study",
)
# Imports of rooms further down, each where a user asks for an optional part, and why.
OPTIONAL_PARTS = {
    ("herring.launch.cli", "herring_lab.emulate"): "herring lab is installed by herring-dl-lab",
    ("herring.launch.cli", "herring_lab.simulate"): "herring-dl-lab installs herring simulate",
    ("herring.launch.cli", "herring_lab.study"): "herring-dl-lab installs herring study",
    ("herring.bench.cli", "herring_lab.competitors"): "herring-dl-lab is needed for --peer",
    ("herring.tensorflow", "herring.keras"): "DistributedOptimizer is for those who have Keras",
}
# CMakeLists.txt lists the core's modules in their order. Those of the laboratory come after them.
CORE_ROOMS = re.compile(r"foreach\(room ([\w ]+)\)")
LAB_ROOMS = ("virtual", "simulate", "switch")
CORE, LAB = Path("src"), Path("lab/src")


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


def folder_of(path: Path) -> Path | None:
    """Returns the folder from which Python imports the file at `path`; None: no package has it."""
    return next((package.parent for package in PACKAGES if package in path.parents), None)


def module_name(path: Path, folder: Path) -> str:
    """Returns the name by which Python imports the file at `path`, below `folder`."""
    parts = path.with_suffix("").relative_to(folder).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    """Returns the package to which relative imports in the file at `path` refer."""
    return ".".join(path.parent.relative_to(folder_of(path) or Path()).parts)


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
    folders = {path: folder for path in paths if (folder := folder_of(path))}
    named = {module_name(path, folder): path for path, folder in folders.items()}
    faces = {package.name for package in PACKAGES}
    modules = {*named, *PYTHON_ROOMS}
    found, graph, used = [], {}, set()
    for name, path in named.items():
        room = room_of(name, PYTHON_ROOMS, ".")
        if not room or (room in faces and room != name):
            found.append(f"{path}: no room; PYTHON_ROOMS in {__file__} has them in their order")
            continue
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
        graph[name] = {*targets} - {name, *faces}
    for name, room in OPTIONAL_PARTS.keys() - used:
        found.append(f"OPTIONAL_PARTS: {name} does not import {room}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"modules import each other: {' <- '.join(error.args[1])}")
    return found


def core_arrows(paths: list[Path]) -> list[str]:
    """Includes in the core and the laboratory that run up, and files without a room."""
    listed = CORE_ROOMS.search(Path("CMakeLists.txt").read_text(encoding="utf-8"))
    rooms = (*(listed[1].split() if listed else ()), *LAB_ROOMS)
    found = []
    for path in paths:
        own = LAB_ROOMS if LAB in path.parents else rooms[: -len(LAB_ROOMS)]
        room = room_of(path.relative_to(LAB if LAB in path.parents else CORE).as_posix(), own, "/")
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
    found += python_arrows(sources)
    found += core_arrows([p for p in paths if {CORE, LAB} & {*p.parents} and p.suffix != ".py"])
    print("\n".join(found) if found else f"style: {len(paths)} files are fine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
