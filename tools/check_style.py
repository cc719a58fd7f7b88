"""Checks rules that no linter knows: width of C++ lines, length of files, order of modules, sleeps.

A module uses only itself and modules above it in the lists below, in Python as in C++. Every import
counts, in a function and for type checkers too. Files of one module do not import each other in a
circle. The trainer's package names the device of every tensor that it makes. No test depends on how
fast the machine is: it waits for events, and limits only end what hangs.

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

# The modules of the packages in their order. A line includes everything in a package, except what
# has a line of its own. `herring` itself is the face that users import.
PYTHON_MODULES = (
    "herring.errors",
    "herring._core",
    "herring.base",
    "herring.process",
    "herring.terminal",
    "herring.flight",
    "herring.rendezvous",
    "herring.lobby",
    "herring.arrays",
    "herring.partial",
    "herring",
    "herring.planned",
    "herring.elastic",
    "herring.arrays.face",
    "herring.observe",
    "herring.doctor",
    "herring.launch",
    "herring.command",
    "herring.bench",
    "herring.models",
    "herring.torch",
    "herring.autoload",
    "herring.ray",
    "herring.jax",
    "herring.tensorflow",
    "herring.keras",
    "herring.horovod.common",
    "herring.horovod.torch",
    "herring.horovod.tensorflow",
    "herring.horovod.keras",
    "herring.horovod.tensorflow.optimizer",
    "herring.horovod.tensorflow.elastic.of_keras",
    "herring.horovod.tensorflow.keras",
    "herring.horovod",
    # The distribution herring-dl-lab.
    "herring_lab",
    "herring_lab.report",
    "herring_lab.progress",
    "herring_lab._simulate",
    "herring_lab.simulate",
    "herring_lab.emulate",
    "herring_lab.soak",
    "herring_lab.competitors",
    "herring_lab.study",
)
# Imports of modules further down, each where a user asks for an optional part, and why.
OPTIONAL_PARTS = {
    ("herring.bench.cli", "herring_lab.competitors"): "herring-dl-lab is needed for --peer",
}
# CMakeLists.txt lists the core's modules in their order. Those of the laboratory come after them.
CORE_MODULES = re.compile(r"foreach\(module ([\w\s]+)\)")
LAB_MODULES = ("virtual", "simulate", "switch")
CORE, LAB = Path("src"), Path("lab/src")


def breaches(path: Path) -> list[str]:
    """Returns what is wrong with the file at `path`."""
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
    """Returns what the file at `path` imports of `modules`, at any place, with the line.

    An import counts for the longest name that fits. A name that no module has is the package's own.
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


def module_of(name: str, listed: Sequence[str], between: str) -> str:
    """Returns the longest of the `listed` modules that a file's name begins with, or ""."""
    fitting = [module for module in listed if f"{name}{between}".startswith(f"{module}{between}")]
    return max(fitting, key=len, default="")


def python_arrows(paths: list[Path]) -> list[str]:
    """Returns imports of modules further down, files of no listed module, and the first circle."""
    folders = {path: folder for path in paths if (folder := folder_of(path))}
    named = {module_name(path, folder): path for path, folder in folders.items()}
    faces = {package.name for package in PACKAGES}
    modules = {*named, *PYTHON_MODULES}
    found, graph, used = [], {}, set()
    for name, path in named.items():
        module = module_of(name, PYTHON_MODULES, ".")
        if not module or (module in faces and module != name):
            found.append(f"{path}: not of a listed module; add it to PYTHON_MODULES in {__file__}")
            continue
        targets = imports(path, modules)
        for target, line in targets.items():
            where = module_of(target, PYTHON_MODULES, ".")
            if PYTHON_MODULES.index(where) <= PYTHON_MODULES.index(module):
                continue
            if (name, where) in OPTIONAL_PARTS:
                used.add((name, where))
            else:
                found.append(f"{path}:{line}: {target} belongs to a module below {module}")
        # `import herring` is what a user writes: it loads the module of a name with its first use.
        graph[name] = {*targets} - {name, *faces}
    for name, module in OPTIONAL_PARTS.keys() - used:
        found.append(f"OPTIONAL_PARTS: {name} does not import {module}")
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append(f"modules import each other: {' <- '.join(error.args[1])}")
    return found


# These functions of torch use the default device, which a script may have set to "cuda".
MAKER = re.compile(
    r"torch\.(arange|as_tensor|asarray|empty|eye|full|linspace|logspace|ones|rand|randint|randn"
    r"|randperm|scalar_tensor|tensor|zeros)"
)


def placeless(path: Path) -> list[str]:
    """Returns calls in the file at `path` that make a tensor of torch without naming its device."""
    calls = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call))
    return [
        f"{path}:{call.lineno}: {ast.unparse(call.func)} makes a tensor, so it needs device="
        for call in calls
        if MAKER.fullmatch(ast.unparse(call.func))
        and not any(keyword.arg == "device" for keyword in call.keywords)
    ]


TESTS = (Path("tests/support"), Path("tests/python"), Path("tests/frameworks"), Path("lab/tests"))
# A sleep of 60 s or more stands for something that never comes, and is ended from outside.
SLEEP = re.compile(r"\btime\.sleep\((\d+(?:\.\d*)?)\)")
SHORTEST, LONGEST = 0.2, 60
LIMIT = re.compile(r"\b(?:monotonic|perf_counter|time)\(\) - [\w.\[\]\"']+ <")
# How many breaches a file may have: what must go on for longer than some timeout. May only shrink.
SLEEPERS = {
    "lab/tests/python/test_lab_strict.py": 1,
    "tests/python/programs/failover_slow_chief.py": 1,
    "tests/python/test_elastic.py": 1,
    "tests/python/test_jobs_in_turn.py": 1,
    "tests/python/test_leaving.py": 4,
    "tests/python/test_links_flap.py": 1,
}


def clocks(paths: list[Path]) -> list[str]:
    """Returns where tests sleep for a while, or demand that something takes less than some time.

    The lines are those of the files, because most programs of the tests are texts in them.
    """
    found = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").split("\n")
        here = [
            f"{path}:{number}: depends on how fast the machine is; wait for an event"
            for number, line in enumerate(lines, 1)
            if LIMIT.search(line)
            or any(SHORTEST <= float(seconds) < LONGEST for seconds in SLEEP.findall(line))
        ]
        allowed = SLEEPERS.get(path.as_posix(), 0)
        if len(here) > allowed:
            found += here
        elif len(here) < allowed:
            found.append(f"{path}: SLEEPERS in {__file__} allows {allowed}, but has {len(here)}")
    return found


def core_arrows(paths: list[Path]) -> list[str]:
    """Returns includes of modules further down in the core and the laboratory, and loose files."""
    order = CORE_MODULES.search(Path("CMakeLists.txt").read_text(encoding="utf-8"))
    core = tuple(order[1].split()) if order else ()
    modules = (*core, *LAB_MODULES)
    found = []
    for path in paths:
        folder, own = (LAB, LAB_MODULES) if LAB in path.parents else (CORE, core)
        module = module_of(path.relative_to(folder).as_posix(), own, "/")
        if not module:
            found.append(f"{path}: in no module; CMakeLists.txt has them in their order")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            include = re.match(r'#include "([^"]+)"', line)
            where = module_of(include[1], modules, "/") if include else ""
            if where and modules.index(where) > modules.index(module):
                found.append(f"{path}:{number}: {where} is a module below {module}")
    return found


def main() -> int:
    """Checks all tracked sources."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, text=True)
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    paths = [path for path in paths if path.suffix in SOURCES and path.is_file()]
    found = [breach for path in paths for breach in breaches(path)]
    sources = [path for path in paths if path.suffix == ".py"]
    found += python_arrows(sources)
    trainers = (path for path in sources if PACKAGES[0] in path.parents)
    found += [breach for path in trainers for breach in placeless(path)]
    found += clocks([path for path in sources if {*TESTS} & {*path.parents}])
    found += core_arrows([p for p in paths if {CORE, LAB} & {*p.parents} and p.suffix != ".py"])
    print("\n".join(found) if found else f"style: {len(paths)} files are fine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
