"""Tests the wheel in build/wheel in a new environment, as a user has it: `make test-install`."""

from __future__ import annotations

import email
import os
import re
import subprocess
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

herring.init(timeout=60)
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
    subprocess.run([*pip, "install", str(only("*.whl"))], check=True, timeout=100)
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
        timeout=100,
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


def test_the_sdist_holds_what_a_build_needs_and_nothing_of_ours() -> None:
    with tarfile.open(only("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"CMakeLists.txt", "src/base/settings.cc", "lab/pyproject.toml"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "build", "run/"))]
