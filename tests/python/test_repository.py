"""Checks files that the repository's host and contributors' tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / ".github").is_dir():
    pytest.skip("an sdist has none of them", allow_module_level=True)
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_well_formed(path: Path) -> None:
    form = load(path)
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert set(form) == {"name", "description", "labels", "body"}
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in questions}) == len(questions) >= 3
    for part in questions:
        assert part["type"] in ("checkboxes", "input", "textarea")
        assert part["attributes"]["label"]
    assert any(part.get("validations", {}).get("required") for part in questions)


def test_there_is_a_form_for_bugs_performance_and_features() -> None:
    assert [path.stem for path in FORMS] == ["bug", "config", "feature", "performance"]


def test_hooks_fetch_nothing() -> None:
    for repository in load(ROOT / ".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            for word in hook["entry"].split():
                if word.endswith(".py"):
                    assert (ROOT / word).is_file()


def test_the_citation_names_what_the_project_names() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()
