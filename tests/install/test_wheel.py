"""Tests the wheel in build/wheel in a new environment, as a user has it: `make test-install`.

The wheel contains what `make build` has compiled, so that nothing is compiled twice. Other tests
show that a user who builds from the sdist gets the same: the sdist has every file, its tree is
configured to the same commands, and the names and metadata agree. `make test-thorough` also builds
a wheel from the sdist, in pip's isolated environment.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "wheel"
JOB = """
import herring
import numpy as np

herring.init(timeout=600)
array = np.full(100_000, herring.rank() + 1, dtype=np.float32)
herring.allreduce(array)
assert (array == (herring.size() + 1) / 2).all(), array
print("rank", herring.rank(), "on node", herring.node_rank(), "has", array[0], herring.__version__)
herring.shutdown()
"""


def only(pattern: str) -> Path:
    found = list(FOLDER.glob(pattern))
    assert len(found) == 1, f"{FOLDER} holds {found}: make build/wheel/stamp"
    return found[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installs the wheel in a new environment; returns the folder of the environment's programs."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(only("*.whl"))], check=True, timeout=600)
    return programs


def run(programs: Path, *command: str) -> str:
    """Runs a program of the environment away from the repository; returns what it prints."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("HERRING_", "PYTHON"))}
    done = subprocess.run(
        [str(programs / command[0]), *command[1:]],
        env={**settings, "PATH": f"{programs}:{os.environ['PATH']}"},
        cwd=programs.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_of_two_nodes_runs_with_it(environment: Path) -> None:
    (environment.parent / "job.py").write_text(JOB, encoding="utf-8")
    layout = ("-n", "2", "--nodes", "2", "--servers", "1")
    said = run(environment, "herring", "run", *layout, "--", "python", "job.py")
    version = only("*.whl").name.split("-")[1].replace("_", "+", 1)
    assert run(environment, "herring", "--version").startswith(f"herring {version} (protocol ")
    for rank in range(2):
        assert f"rank {rank} on node {rank} has 1.5 {version}\n" in said, said


def test_an_index_can_show_its_description() -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(wheel.read(name))
    text = about.get_payload()
    assert about["Description-Content-Type"] == "text/markdown"
    assert "# Herring" in text and "herring run -n 4" in text
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert all(re.match("https?://", link) for link in links), links
    assert "mermaid" not in text and "docs/pictures" not in text


def test_every_build_requirement_has_an_upper_bound() -> None:
    for file in ("pyproject.toml", "lab/pyproject.toml"):
        text = (ROOT / file).read_text(encoding="utf-8")
        listed = re.search(r"^requires = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        assert listed is not None
        needs = re.findall(r'"(.*?)"', listed[1])
        needs += re.findall(r'^(?:cmake|ninja)\.version = "(.*)"$', text, re.MULTILINE)
        assert len(needs) >= 5
        assert all(re.search(r"<\d", need) for need in needs), needs


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an sdist of the working tree."""
    folder = tmp_path_factory.mktemp("sdist")
    program = f"import scikit_build_core.build as b; b.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the sdist's files."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def about(text: bytes) -> dict[str, list[str]]:
    """Returns the fields of a METADATA or PKG-INFO file, but for the version.

    The wheel may be older than the newest commit, if it would not be another one.
    """
    message = email.message_from_bytes(text)
    fields = {name: message.get_all(name, []) for name in message if name != "Version"}
    return {**fields, "text": [str(message.get_payload())]}


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {re.sub(r"-[^/]*\.dist-info/", "/", name) for name in archive.namelist()}


def test_the_sdist_holds_what_a_build_needs_and_nothing_of_ours(unpacked: Path) -> None:
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {"CMakeLists.txt", "src/base/settings.cc", "lab/pyproject.toml", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "build", "run/"))]
    for name in names - {"PKG-INFO"}:
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes(), name


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows which files are ours")
def test_the_sdist_has_every_file_but_those_that_are_named(unpacked: Path) -> None:
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    ours = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    left_out = (".ci/", ".github/", ".pre-commit-config.yaml", "run/")
    missing = [name for name in ours if (ROOT / name).is_file() and not (unpacked / name).is_file()]
    assert not [name for name in missing if not name.startswith(left_out)], missing


def compilers_commands(build: Path, source: Path) -> list[str]:
    """Returns the commands that compile the wheel's files, without what is meant to differ.

    That is the names of folders and of the compiler, line numbers for traces, a cache, and what
    nanobind leaves out of a release.
    """
    differs = r"^.*?\+\+ | -(g1|fpch-preprocess|fno-stack-protector)(?= )"
    ninja = ("ninja", "-C", str(build), "-t", "commands", "_core", "herring_tensorflow")
    found = []
    for line in subprocess.check_output(ninja, text=True).splitlines():
        if " -c " in line and not line.startswith("ninja:"):
            line = line.replace(sys.prefix, "ENVIRONMENT")
            line = line.replace(str(build), "BUILD").replace(str(source), "SOURCE")
            found.append(re.sub(differs, "", line))
    return sorted(" ".join(line.split()) for line in found)


def units(build: Path, source: Path) -> dict[str, str]:
    """Returns the files that compile several files as one."""
    folders = ("herring_core", "herring_calm", "_core")
    return {
        str(path.relative_to(build)): path.read_text()
        .replace(str(build), "BUILD")
        .replace(str(source), "SOURCE")
        for path in build.rglob("Unity/*.cxx")
        if path.parts[-3].removesuffix(".dir") in folders
    }


def test_a_user_compiles_the_same(unpacked: Path, tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake is not None
    settings = ("CMAKE_BUILD_TYPE=Release", "HERRING_BUILD_PYTHON=ON", "HERRING_BUILD_LAB=OFF")
    options = [f"-D{each}" for each in (*settings, f"Python_EXECUTABLE={sys.executable}")]
    subprocess.run(
        [cmake, "-G", "Ninja", *options, "-S", str(unpacked), "-B", str(tmp_path)],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )
    theirs = compilers_commands(tmp_path, unpacked)
    assert len(theirs) > 20
    assert theirs == compilers_commands(ROOT / "build", ROOT)
    assert units(tmp_path, unpacked) == units(ROOT / "build", ROOT)


def test_sdist_and_wheel_say_the_same_about_themselves(unpacked: Path) -> None:
    with zipfile.ZipFile(only("*.whl")) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = wheel.read(name)
    assert about((unpacked / "PKG-INFO").read_bytes()) == about(metadata)


def test_the_wheel_has_the_package_and_what_is_compiled() -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    compiled = {f"herring/_core{suffix}", "herring/tensorflow/_ops.so"}
    package = ROOT / "python"
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    found = {name for name in in_wheel(only("*.whl")) if not name.startswith("herring_dl/")}
    assert found == files | compiled


@pytest.mark.thorough
def test_a_wheel_from_the_sdist_in_an_isolated_environment_has_the_same_files(
    sdist: Path, tmp_path: Path
) -> None:
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "wheel", "--no-deps")
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(sdist)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[2:] == only("*.whl").name.split("-")[2:]
    assert in_wheel(wheel) == in_wheel(only("*.whl"))
