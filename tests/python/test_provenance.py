"""Tests what JSON results say about where they come from."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

import herring
from herring import version as module
from herring.provenance import provenance
from herring_lab.report import Table, write

KEYS = ["version", "commit", "modified", "date", "host", "options"]


def test_it_names_version_commit_host_options_and_date() -> None:
    options = argparse.Namespace(
        size=[1, 2], rate=None, out=Path("a/b"), quick=True, handler=lambda: None
    )
    before = datetime.now(timezone.utc).replace(microsecond=0)
    found = json.loads(json.dumps(provenance(options)))
    assert list(found) == KEYS
    assert found["version"] == herring.__version__
    assert before <= datetime.fromisoformat(found["date"]) <= datetime.now(timezone.utc)
    assert all(found["host"].values()), found["host"]
    assert found["options"] == {"size": [1, 2], "rate": None, "out": "a/b", "quick": True}


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
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


def test_results_have_it(tmp_path: Path) -> None:
    table = write(Table("name", "A title", [{"a": 1}]), tmp_path, {"size": 3})[1]
    assert json.loads(table.read_text())["provenance"]["options"] == {"size": 3}
    for command in (["check", "--no-run", "--json"], ["simulate", "--size", "25M", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "herring.launch.cli", *command],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert list(json.loads(done.stdout)["provenance"]) == KEYS, command


def test_whatever_writes_results_for_programs_has_it() -> None:
    root = Path(__file__).resolve().parents[2]
    for name in ("adapters", "counts", "figures", "groups"):
        text = (root / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        assert re.search(r"write_results\(options\.json, .*, options\)", text), name
        assert "options.json).write_text" not in text, name
