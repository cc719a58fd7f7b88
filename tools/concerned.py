"""Finds the tests that concern a file of the product, those that cost least for their worth first.

For Python, a test concerns a file if it mentions what the file defines: its module, its functions,
classes and methods. A name that few tests mention counts more. Helpers that a test imports belong
to it, and so do programs that it runs. Names of modules that import the file count a fifth, because
much is reached through them only. Words that both paths share count too. No run is recorded for
this, and it follows the tests as they are.

For C++, the tests of the module come first, then those of modules above it, random programs, broken
connections, and jobs from Python. A lock that is missing seldom makes a test fail, so the tests of
modules run under ThreadSanitizer then, too.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Step", "cc_steps", "gtest", "pytest_of", "python_steps"]

TESTS = ("tests/python", "lab/tests/python")
HELPERS = "tests/support"
MOST_FILES = 14  # test files for a place in Python
# Jobs from Python, for each module of the core.
JOBS = {
    "base": "settings logs interrupts launch_causes",
    "observe": "status recorded observed_jobs flight_jobs",
    "plan": "settings devices",
    "partial": "partial partial_take_over",
    "wire": "hostile_input objects",
    "device": "devices gpus_add cuda_butterfly devices_lost devices_fail",
    "transport": "encryption hostile_input",
    "control": "faults leaving failover status elastic",
    "server": "failover groups partial",
    "links": "failover credit orders",
    "node": "node_threads devices gpus_add cuda_butterfly",
    "collective": "algorithms messages",
    "engine": "groups failover callbacks teardown",
    "calls": "orders callbacks failover devices",
    "rounds": "notes devices partial failover",
    "worker": "failover leaving partial teardown",
    "job": "failover observed_jobs teardown init_again",
}
EVERY_JOB = "collectives groups join faults"
# Where CMake's presets build.
FOLDERS = {"default": "build", "thread": "build-thread"}
FAILED = {
    "pytest": re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE),
    "gtest": re.compile(r"^\[  FAILED  \] ([\w/.]+)", re.MULTILINE),
    "ctest": re.compile(r"^\s*\d+ - (\w+) \(.*\)$", re.MULTILINE),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A command that runs some tests.

    Attributes:
        kind: pytest, gtest or ctest.
        name: A file of tests, an executable, or a pattern of ctest's names.
        targets: What ninja has to build for it.
        preset: Of CMake, with which it is built.
    """

    kind: str
    name: str
    targets: tuple[str, ...] = ()
    preset: str = "default"

    def preparation(self, packages: str) -> list[list[str]]:
        """Returns the commands that build it, and install the core in a folder of packages."""
        if not self.targets:
            return []
        build = ["cmake", "--build", "--preset", self.preset, "--target", *self.targets]
        commands = [[*build, "--", "--quiet"]]
        if self.kind == "pytest":
            install = ["cmake", "--install", "build", "--prefix", packages, "--component"]
            commands += [[*install, "python"], [*install, "lab"]]
        return commands

    def command(self, only: str = "", without: Iterable[str] = ()) -> list[str]:
        """Returns the command for all of its tests, for one, or for all `without` some."""
        if self.kind == "pytest":
            options = [f"--deselect={test}" for test in without]
            options += ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
            return ["python", "-m", "pytest", *options, "-m", "not thorough", only or self.name]
        if self.kind == "gtest":
            chosen = only or f"-{':'.join(without)}"
            return [self.name, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={chosen}"]
        skipped = ["-E", f"^({'|'.join(without)})$"] if without else []
        chosen = ["-R", f"^{only}$" if only else self.name]
        return ["ctest", "--test-dir", "build", "--stop-on-failure", *chosen, *skipped]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that CMake gives to C++ tests: where the stand-in is, how races end."""
        if self.kind != "gtest":
            return {}
        folder = f"{FOLDERS[self.preset]}/tests/device"
        return {"LD_LIBRARY_PATH": folder, "TSAN_OPTIONS": "halt_on_error=1"}

    @property
    def most_cpu_seconds(self) -> float:
        """Several times what the largest step of this kind takes."""
        most = {"gtest": 100.0, "ctest": 300.0, "pytest": 400.0}[self.kind]
        return most if self.preset == "default" else 10 * most

    def failed(self, output: str) -> str:
        """Returns the name of the test that failed; "": the output has none."""
        found = FAILED[self.kind].search(output)
        return found[1] if found else ""


def gtest(root: Path, module: str, preset: str = "default") -> Step:
    """Returns the step that runs the C++ tests of a module."""
    where = "lab/tests/unit" if (root / "lab/tests/unit" / module).is_dir() else "tests"
    name = f"{FOLDERS[preset]}/{where}/test_{module}"
    return Step("gtest", name, (f"test_{module}",), preset)


def pytest_of(path: str, native: bool) -> Step:
    """Returns the step that runs a file of Python tests."""
    modules = ("_core", "herring_tensorflow", "_simulate", "herring_lab_switch")
    return Step("pytest", path, modules if native else ())


def cc_steps(root: Path, path: str, races: bool = False) -> list[Step]:
    """Returns the steps for a C++ file, the nearest first.

    Args:
        root: The root of the repository.
        path: The file, relative to the root.
        races: Whether these tests also run under ThreadSanitizer. Those of the laboratory do not:
            all of a job in virtual time runs in one thread.
    """
    listed = re.search(r"foreach\(module ([\w\s]+)\)", (root / "CMakeLists.txt").read_text())
    modules = listed[1].split() if listed else []
    module = Path(path).parts[1]
    above = [*modules[modules.index(module) + 1 :], "virtual", "simulate"]
    used = [one for one in above if _includes(root, one, module)]
    steps = []
    for one in (module, *used):
        presets = ("default", "thread") if races and one in modules else ("default",)
        steps += [gtest(root, one, preset) for preset in presets if _has_tests(root, one)]
    steps.append(Step("gtest", "build/tests/test_multiproc", ("test_multiproc",)))
    steps.append(Step("ctest", "^random_", ("random_programs",)))
    steps.append(Step("ctest", "_connections$", ("broken_connections",)))
    names = dict.fromkeys((*JOBS.get(module, "").split(), *EVERY_JOB.split()))
    files = [f"tests/python/test_{name}.py" for name in names]
    return steps + [pytest_of(file, True) for file in files if (root / file).is_file()]


def _has_tests(root: Path, module: str) -> bool:
    return any((root / where / module).is_dir() for where in ("tests/unit", "lab/tests/unit"))


def _includes(root: Path, user: str, module: str) -> bool:
    """Returns whether a file of one module, or of its tests, includes one of another."""
    folders = (root / "src" / user, root / "lab/src" / user, root / "tests/unit" / user)
    sources = (path for folder in folders for path in folder.rglob("*.*") if path.is_file())
    return any(f'#include "{module}/' in path.read_text(encoding="utf-8") for path in sources)


def python_steps(root: Path, path: str, seconds: dict[str, float]) -> list[Step]:
    """Returns the steps for a Python file. `seconds` has what files of tests have taken before."""
    own, others = _names_of(root, path), _names_of_users(root, path)
    words = _words(root)
    tests_with: dict[str, int] = {}
    for name in own | others:
        tests_with[name] = sum(name in mentioned for mentioned in words.values())
    worth = {
        test: sum(1 / tests_with[name] for name in own & mentioned)
        + sum(0.2 / tests_with[name] for name in (others - own) & mentioned)
        + _kinship(path, test)
        for test, mentioned in words.items()
    }
    best = sorted((test for test in worth if worth[test]), key=lambda test: -worth[test])
    # A file ends with the first test that notices, so it matters less how long all of it takes.
    order = {test: _cost(root, test, seconds) ** 0.5 / worth[test] ** 2 for test in best}
    return [
        pytest_of(test, False) for test in sorted(best[:MOST_FILES], key=lambda test: order[test])
    ]


def _kinship(path: str, test: str) -> float:
    """Returns which part of the words in the name of a test's file the path of a file has."""
    words = Path(test).stem.removeprefix("test_").split("_")
    own = {part for one in Path(path).with_suffix("").parts[2:] for part in one.split("_")}
    return sum(word in own for word in words) / len(words)


def _cost(root: Path, test: str, seconds: dict[str, float]) -> float:
    """Returns how many seconds a file of tests takes, or a guess from the jobs that it names."""
    if test in seconds:
        return seconds[test]
    jobs = len(re.findall(r"run_job|Job\(|outcomes\(|subprocess", (root / test).read_text("utf-8")))
    return 1 + jobs * (10 if "torch" in _words(root)[test] else 2)


@functools.cache
def _names_of(root: Path, path: str) -> frozenset[str]:
    """Returns the names by which tests may mention what a file defines."""
    module = ".".join(Path(path).relative_to("python").with_suffix("").parts)
    names = {module.removesuffix(".__init__")}
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    # Names of one word are those of many things.
    return frozenset(name for name in names if not name.startswith("_") and len(name) > 4)


def _names_of_users(root: Path, path: str) -> frozenset[str]:
    """Returns the names that modules define which import a file."""
    module = ".".join(Path(path).relative_to("python").with_suffix("").parts)
    parent, _, last = module.removesuffix(".__init__").rpartition(".")
    use = re.compile(
        rf"from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(parent)} import [^\n]*\b{last}\b"
    )
    users = [
        user.relative_to(root).as_posix()
        for user in sorted((root / "python/herring").rglob("*.py"))
        if use.search(user.read_text(encoding="utf-8"))
    ]
    return frozenset().union(*(_names_of(root, user) for user in users if user != path))


@functools.cache
def _words(root: Path) -> dict[str, frozenset[str]]:
    """Returns the words of every file of tests, of its helpers and of the programs that it runs."""
    found = {}
    for folder in TESTS:
        for path in sorted((root / folder).glob("test_*.py")):
            texts: dict[Path, str] = {}
            _read(path, (root / folder, root / TESTS[0], root / HELPERS), texts)
            every = "\n".join(texts.values())
            words = {*re.findall(r"\w+", every), *re.findall(r"herring(?:\.\w+)+", every)}
            for module, names in re.findall(r"from (herring[\w.]*) import ([\w, ]+)", every):
                words.update(f"{module}.{name.strip()}" for name in names.split(","))
            found[path.relative_to(root).as_posix()] = frozenset(words)
    return found


def _read(path: Path, folders: Sequence[Path], texts: dict[Path, str]) -> None:
    """Adds the text of a file, and of what it imports or names of the tests' own files."""
    if path in texts:
        return
    texts[path] = text = path.read_text(encoding="utf-8")
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    for name in dict.fromkeys([*imported, *re.findall(r"[\"'](\w+)[\"']", text)]):
        for folder in folders:
            for other in (folder / f"{name}.py", folder / "programs" / f"{name}.py"):
                if other.is_file() and not name.startswith("test_"):
                    _read(other, folders, texts)
            if name.isidentifier() and (folder / name / "__main__.py").is_file():
                for other in sorted((folder / name).glob("*.py")):
                    _read(other, folders, texts)
