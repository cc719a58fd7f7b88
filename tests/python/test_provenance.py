"""Tests what JSON results say about where they come from."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import herring
from herring.base import version as module
from herring.base.provenance import provenance, require_writable, write_results
from herring.errors import ConfigurationError
from herring_lab.report import Table, write

KEYS = ["version", "commit", "modified", "date", "host", "options"]


def test_it_names_version_commit_host_options_and_date() -> None:
    options = argparse.Namespace(
        size=[1, 2], rate=None, out=Path("a/b"), quick=True, handler=lambda: None
    )
    before = datetime.now(UTC).replace(microsecond=0)
    found = json.loads(json.dumps(provenance(options)))
    assert list(found) == KEYS
    assert found["version"] == herring.__version__
    assert before <= datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert all(found["host"].values()), found["host"]
    assert found["options"] == {"size": [1, 2], "rate": None, "out": "a/b", "quick": True}


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=600
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert module.commit(tmp_path) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("2")
    assert module.commit(tmp_path) == (git("rev-parse", "HEAD"), True)


@pytest.mark.parametrize(
    ("version", "commit"),
    [
        ("0.2.0", (None, None)),
        ("0.2.1.dev3+g1a2b3c4d5", ("1a2b3c4d5", False)),
        ("0.2.1.dev3+g1a2b3c4d5.d20261124", ("1a2b3c4d5", True)),
        ("unknown (not installed)", (None, None)),
    ],
)
def test_without_a_checkout_the_version_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, commit: object
) -> None:
    monkeypatch.setattr(module, "version", lambda: version)
    assert module.commit(tmp_path) == commit
    (tmp_path / ".git").write_text("gitdir: nowhere")  # git fails in this folder.
    assert module.commit(tmp_path) == commit


LIMITED = """
import resource, sys
from herring.errors import ConfigurationError
from herring.base.provenance import write_results
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))  # a disk that is full after 64 bytes
try:
    write_results(sys.argv[1], {"a": "b" * 100}, {})
except ConfigurationError as error:
    print(error)
"""


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=600
    )
    assert done.stdout == f"cannot write {path}: File too large\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_plain_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_results(pipe, {"a": 1}, {})
        text, _ = reader.communicate(timeout=600)
    assert json.loads(text)["a"] == 1
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    require_writable(tmp_path / "new.json", "--json")
    (tmp_path / "old.json").write_text("kept")
    require_writable(tmp_path / "old.json", "--json")
    assert (tmp_path / "old.json").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    for path in (tmp_path / "none" / "x.json", tmp_path):
        with pytest.raises(ConfigurationError, match=f"^--json {path}: cannot be written: "):
            require_writable(path, "--json")


def test_results_have_it(tmp_path: Path) -> None:
    table = write(Table("name", "A title", [{"a": 1}]), tmp_path, {"size": 3})[1]
    assert json.loads(table.read_text())["provenance"]["options"] == {"size": 3}
    for command in (["check", "--no-run", "--json"], ["simulate", "--size", "25M", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "herring.command.cli", *command],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert list(json.loads(done.stdout)["provenance"]) == KEYS, command


def test_whatever_writes_results_for_programs_has_it() -> None:
    root = Path(__file__).resolve().parents[2]
    for name in ("adapters", "counts", "figures", "groups"):
        text = (root / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        assert re.search(r"write_results\(options\.json, .*, options\)", text), name
        assert "options.json).write_text" not in text, name
