"""Tests which parts each package installs, and the messages when the laboratory is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import herring
from herring.base.parts import LAB, data_file, install_command, missing_part
from herring.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]

# Makes the laboratory's parts impossible to import, as if only herring-dl were installed.
WITHOUT_LAB = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {LAB!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_without_lab(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_LAB + program],
        env={k: v for k, v in os.environ.items() if not k.startswith("HERRING_")},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_data_file_that_was_edited_wrongly_is_named_with_the_line(tmp_path):
    edited = tmp_path / "dashboard.json"
    edited.write_text('{\n  "title" "Herring"\n}\n')
    with pytest.raises(ConfigurationError, match=rf"^{edited} cannot be read: .* line 2 column 11"):
        data_file(str(edited))


@pytest.mark.parametrize("command", ["lab", "study", "simulate", "soak"])
def test_a_command_that_is_not_installed_says_what_to_install(command):
    program = f"from herring.command.cli import main; sys.exit(main(['{command}', '--help']))"
    done = run_without_lab(program)
    assert done.returncode == 2, done.stderr
    assert f"herring {command}: Herring's laboratory is not installed" in done.stderr
    assert "pip install ./lab" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_of_what_trains_does_without_the_lab():
    program = """
import importlib, pkgutil, herring
from herring.command.cli import main
from herring.bench.cli import main as bench
for name in ("arrays", "bench", "command", "doctor", "flight", "launch", "observe", "rendezvous"):
    for module in pkgutil.walk_packages([f"{folder}/{name}" for folder in herring.__path__],
                                        f"herring.{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
for name in herring.__all__:
    getattr(herring, name)
main(["config"])
sys.exit(bench(["allreduce", "--sizes", "4K", "--iterations", "1"]))
"""
    done = run_without_lab(program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_benchmark_says_where_its_peers_are():
    program = """
from herring.bench.cli import main
sys.exit(main(["allreduce", "--peer", "gloo", "--sizes", "4K"]))
"""
    done = run_without_lab(program)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "--peer gloo" in done.stderr and "pip install ./lab" in done.stderr


def test_another_missing_module_is_no_part_of_the_lab():
    assert missing_part(ModuleNotFoundError("no torch", name="torch")) == ""
    assert missing_part(ModuleNotFoundError("no laboratory", name="herring_laboratory")) == ""
    for name in ("herring_lab", "herring_lab.emulate.links"):
        assert "pip install ./lab" in missing_part(ModuleNotFoundError("x", name=name))


def test_messages_and_pages_name_nothing_that_no_index_has():
    assert install_command("jax") == "pip install 'jax>=0.6' optax"
    assert install_command("ray") == "pip install 'ray[train]>=2.60' 'torch>=2.9'"
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("lab/*.md")]
    texts += (ROOT / "python" / "herring").rglob("*.py")
    for path in texts:
        if path.name != "CHANGELOG.md":
            text = " ".join(path.read_text(encoding="utf-8").split())
            assert not re.search(r"pip install ['\"]?herring-dl|'herring-dl\[", text), path


def test_all_say_the_same_version():
    assert herring.__version__ == metadata.version("herring-dl")
    for file in ("pyproject.toml", "lab/pyproject.toml", "CMakeLists.txt"):  # from a tag only
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not re.search(r"^version = |^project\(.* VERSION ", text, re.MULTILINE), file
    fallbacks = {
        re.search(r'^fallback_version = "(.*)"$', (ROOT / file).read_text(), re.MULTILINE)[1]
        for file in ("pyproject.toml", "lab/pyproject.toml")
    }
    released = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert fallbacks == {released[0]}


def test_each_distribution_has_one_package():
    for file, package in (("pyproject.toml", "herring"), ("lab/pyproject.toml", "herring_lab")):
        text = (ROOT / file).read_text(encoding="utf-8")
        packages = re.search(r"^wheel\.packages = (.*)$", text, re.MULTILINE)
        assert packages is not None and packages[1] == f'["python/{package}"]', file


def test_both_distributions_carry_the_whole_licence():
    assert (ROOT / "lab" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
