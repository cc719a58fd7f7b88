"""House rules that no linter knows: width of C++ lines, length of files, plain text, no circles.

No circle: Python modules do not import each other, not even in a function. No "X | None" where it
is evaluated: Python 3.9 has it in annotations only.

Usage: python tools/check_style.py (in the root of the repository). Lists every breach and ends with
status 1 if there is one.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

MAXIMUM_COLUMNS = 100
MAXIMUM_LINES = 650  # about 600: a file that wants to grow has two ideas in it
PACKAGE = Path("python/herring")
SOURCES = {".cc", ".h", ".inc", ".py", ".sh", ".cmake"}


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


def imports(path: Path, modules: set[str]) -> set[str]:
    """Which of `modules` the file at `path` imports, at any place; itself and its package not."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= parts & modules or {node.module}
    # `import herring` is what a user writes: it loads the module of a name with its first use.
    return (names & modules) - {module_name(path), PACKAGE.name}


def circles(paths: list[Path]) -> list[str]:
    """The first circle of imports in the package, if there is one."""
    named = {module_name(path): path for path in paths if PACKAGE in path.parents}
    graph = {name: imports(path, {*named}) for name, path in named.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"{PACKAGE}: modules import each other: {' <- '.join(error.args[1])}"]
    return []


def main() -> int:
    """Checks all tracked sources."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, text=True)
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    paths = [path for path in paths if path.suffix in SOURCES and path.is_file()]
    found = [breach for path in paths for breach in breaches(path)]
    sources = [path for path in paths if path.suffix == ".py"]
    found += [union for path in sources for union in evaluated_unions(path)]
    found += circles(sources)
    print("\n".join(found) if found else f"style: {len(paths)} files are fine")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
