"""Checks the wheels of herring-dl and herring-dl-lab as a user installs them, without a compiler.

Usage: python tools/check_wheels.py WHEELS NEEDS. Creates a virtual environment of this Python and
installs Herring from the folder WHEELS and its dependencies from the folder NEEDS. Only the
environment's programs are in PATH. Upgrades from an older version, runs small jobs, measures the
time of the import, and checks that uninstalling leaves no file. Ends with status 1 at the first
failure.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "cmake", "ninja")
IMPORT_LIMIT = 0.15  # Seconds that `import herring` may take, after the interpreter's start.
RUNS = 20
JOB = """
import herring
import numpy as np

herring.init(timeout=60)
array = np.full(100_000, herring.rank() + 1, dtype=np.float32)
herring.allreduce(array)
assert (array == (herring.size() + 1) / 2).all(), array
print("rank", herring.rank(), "has the average", array[0])
herring.shutdown()
"""


class Environment:
    """A new virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.python = folder / "bin" / "python"

    def try_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with only the environment's programs in PATH."""
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env={"PATH": str(self.folder / "bin"), "HOME": str(self.folder)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def run(self, *command: str) -> str:
        """Runs a command that must succeed; returns its standard output."""
        done = self.try_run(*command)
        require(done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def pip(self, *arguments: str) -> str:
        """Runs pip without an index."""
        return self.run("python", "-m", "pip", "-q", "--disable-pip-version-check", *arguments)

    def files(self) -> set[str]:
        """Returns all files in the environment, except compiled files of other packages."""
        found = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return {name for name in found if "__pycache__" not in name or "herring" in name}

    def seconds_of(self, programs: Sequence[str]) -> list[float]:
        """Returns the median time of an interpreter with each program; the programs take turns."""
        times: list[list[float]] = [[] for _ in programs]
        for _ in range(RUNS + 1):  # The first run, which is not counted, writes compiled files.
            for program, taken in zip(programs, times):
                began = time.perf_counter()
                self.run("python", "-c", program)
                taken.append(time.perf_counter() - began)
        return [statistics.median(taken[1:]) for taken in times]


def require(holds: bool, text: str) -> None:
    """Prints an error and ends with status 1 unless `holds` is true."""
    if not holds:
        sys.exit(f"error: {text}")


def only(folder: Path, pattern: str) -> Path:
    """Returns the only file in a folder that matches a pattern."""
    found = list(folder.glob(pattern))
    require(len(found) == 1, f"{folder} has {len(found)} files {pattern}; 1 is expected")
    return found[0]


def older(wheel: Path, folder: Path) -> Path:
    """Writes a copy of a wheel as version 0.0.1, with a module that the wheel no longer has."""
    version = wheel.name.split("-")[1]
    made = folder / wheel.name.replace(version, "0.0.1", 1)
    rows = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w") as target:
        files = {one: source.read(one) for one in source.namelist() if not one.endswith("/")}
        files["herring/gone.py"] = b""
        for name, content in files.items():
            if name.endswith(".dist-info/RECORD"):
                continue
            named = name.replace(f"-{version}.dist-info/", "-0.0.1.dist-info/")
            if name.endswith(".dist-info/METADATA"):
                head, line, rest = content.partition(b"\nVersion: ")
                content = head + line + b"0.0.1\n" + rest.partition(b"\n")[2]
            target.writestr(named, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append(f"{named},sha256={digest.decode()},{len(content)}\n")
        record = "herring_dl-0.0.1.dist-info/RECORD"
        target.writestr(record, "".join([*rows, f"{record},,\n"]))
    return made


def check_import(environment: Environment) -> None:
    """Measures the time of `import herring` and, for comparison, of `import numpy`."""
    programs = ("pass", "import herring", "import herring; herring.allreduce", "import numpy")
    bare, *times = environment.seconds_of(programs)
    taken, ready, numpy = (each - bare for each in times)
    print(
        f"import herring: {taken:.3f} s; with its functions and the core: {ready:.3f} s; numpy "
        f"alone: {numpy:.3f} s; the interpreter's start: {bare:.3f} s (medians of {RUNS})"
    )
    require(taken < IMPORT_LIMIT, f"import herring took {taken:.3f} s; the limit is {IMPORT_LIMIT}")


def check_trainer(environment: Environment) -> None:
    """Checks that herring-dl alone runs jobs, and says what to install for the other commands."""
    (environment.folder / "job.py").write_text(JOB)
    for layout in (["-n", "2"], ["-n", "2", "--nodes", "2", "--servers", "1"]):
        print(environment.run("herring", "run", *layout, "--", "python", "job.py"), end="")
    arguments = ("allreduce", "--check", "--sizes", "4K,1M", "--iterations", "3")
    said = environment.run(
        "herring", "run", "-n", "2", "--", "python", "-m", "herring.bench", *arguments
    )
    require("wrong elements: 0 OK" in said, said)
    for part in ("lab", "study", "simulate", "soak"):
        missing = environment.try_run("herring", part, "--help")
        require(
            missing.returncode == 2 and "pip install ./lab" in missing.stderr,
            f"herring {part}: {missing.returncode} {missing.stdout}{missing.stderr}",
        )
    print(missing.stderr, end="")
    (environment.folder / "job.py").unlink()


def check_lab(environment: Environment) -> None:
    """Checks that herring-dl-lab adds its commands."""
    said = environment.run(
        *("herring", "simulate", "--nodes", "4", "--servers", "4", "--size", "25M"),
        *("--rate", "10gbit", "--rtt", "50us"),
    )
    require("best servers" in said, said)
    code = (
        "import os, herring_lab.emulate.strict as s; "
        "print(os.access(s.find_switch() or '', os.X_OK))"
    )
    said = environment.run("python", "-c", code)
    require(said == "True\n", f"herring_lab_switch can be run: {said}")
    environment.run("herring", "lab", "--help")
    environment.run("herring", "study", "--help")


def main() -> None:
    """Runs all checks."""
    wheels, needs = (Path(folder).resolve() for folder in sys.argv[1:])
    index = ("--no-index", "--find-links", str(wheels), "--find-links", str(needs))
    with tempfile.TemporaryDirectory(prefix="herring-wheels-") as folder:
        environment = Environment(Path(folder))
        path = str(environment.folder / "bin")
        compilers = [name for name in COMPILERS if shutil.which(name, path=path)]
        require(not compilers, f"{path} has {compilers}")
        environment.pip("install", *index, "numpy", "psutil", "rich", "matplotlib")
        before = environment.files()

        old = older(only(wheels, "herring_dl-*.whl"), environment.folder)
        environment.pip("install", *index, str(old))
        require(environment.run("herring", "--version") == "herring 0.0.1\n", "no old version")
        environment.pip("install", *index, "--upgrade", "--pre", "herring-dl")
        require(environment.run("herring", "--version").startswith("herring "), "no version")
        require(environment.run("herring", "--version") != "herring 0.0.1\n", "no upgrade")
        left = [name for name in environment.files() if "herring/gone.py" in name]
        require(not left, f"the old version left {left}")
        old.unlink()
        check_import(environment)
        check_trainer(environment)
        trainer = environment.files()

        environment.pip("install", *index, "--pre", "herring-dl-lab")
        check_lab(environment)
        environment.pip("uninstall", "-y", "herring-dl-lab")
        left = {name for name in environment.files() - trainer if "__pycache__" not in name}
        require(not left, f"uninstalling herring-dl-lab left {sorted(left)}")
        check_trainer(environment)

        environment.pip("uninstall", "-y", "herring-dl")
        left = environment.files() - before
        require(not left, f"uninstalling herring-dl left {sorted(left)}")
        print("uninstalled: no file is left")


if __name__ == "__main__":
    main()
