"""Compares pages that repeat facts of the code with the code."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lab/README.md")]
PAGES += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "lab/docs").rglob("*.md")])


def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def enumerators(text: str, name: str) -> dict[str, int]:
    """Returns the names (without the leading k) and values of a C++ enumeration.

    The alternatives of a `std::variant` are numbered from 0.
    """
    body = re.search(rf"enum class {name}\b[^{{]*\{{(.*?)\}};", text, re.DOTALL) or re.search(
        rf"using {name} = std::variant<(.*?)>;", text, re.DOTALL
    )
    assert body is not None, f"there is no enum {name}"
    body_text = re.sub(r"//.*", "", body.group(1))
    values: dict[str, int] = {}
    following = 0
    for item in filter(None, (part.strip() for part in body_text.split(","))):
        label, _, value = (part.strip() for part in item.partition("="))
        if label == "kLast":
            continue
        following = int(value) if value else following
        values[label.removeprefix("k")] = following
        following += 1
    return values


def test_settings_page_is_current() -> None:
    tool = ROOT / "tools" / "make_settings_doc.py"
    # A variable of this environment, even with a wrong value, must not affect the page.
    environment = {**os.environ, "HERRING_FLOWS": "99999"}
    done = subprocess.run(
        [sys.executable, str(tool), "--check"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def constant(file: str, name: str) -> float:
    """Returns the value of a C++ constant; times are in seconds."""
    units = {"kMillisecond": 1e-3, "kSecond": 1.0}
    found = re.search(rf"\b{name} = ([^;,]+)[;,]", source(f"src/observe/{file}"))
    assert found is not None, f"{file} has no {name}"
    factors = [part.strip() for part in found.group(1).split("*")]
    return math.prod(units.get(one) or float(one) for one in factors)


def test_page_on_late_ranks_has_the_limits_of_the_code() -> None:
    text = " ".join(source("docs/how-to/late-ranks.md").split())
    late = re.search(r"more than (\S+) ms and more than (\S+) % of the step", text)
    often = re.search(r"at least (\S+) % of the last (\d+) steps, or of the last (\d+)", text)
    once = re.search(r"late once, by more than (\w+) steps and (\S+) s\.", text)
    assert late and often and once
    assert float(late[1]) == 1e3 * constant("rounds.cc", "kLate")
    assert float(late[2]) == 100 * constant("rounds.cc", "kLatePart")
    assert float(often[1]) == 100 * constant("judgement.cc", "kChronic")
    assert int(often[2]) == constant("rounds.h", "kWindow")
    assert int(often[3]) == constant("judgement.cc", "kLatestRounds")
    assert ["one", "two", "three", "four", "five"].index(once[1]) + 1 == constant(
        "monitor.h", "kOnceSteps"
    )
    assert float(once[2]) == constant("monitor.h", "kOnceLate")


# Names that look like settings of Herring but are not.
NOT_SETTINGS = {"HERRING_"}

QUOTES = ROOT / "tools" / "make_quotes.py"


def test_quoted_outputs_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(QUOTES), "--check"],
        env={**os.environ, "HERRING_FLOWS": "99999"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "<!-- output of the block above" in source("lab/docs/simulate.md")


def test_the_tests_that_show_what_happens_after_failures_exist() -> None:
    named = re.findall(r"`([\w/]*tests/[\w/.]+)(?:::(\w+))?`", source("docs/extend/failures.md"))
    assert len(named) > 10
    for path, name in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"(def {name}\(|TEST\w*\(\w+, {name}\))", text), (path, name)


def test_a_quoted_output_that_is_stale_or_cannot_be_checked_is_found(tmp_path: Path) -> None:
    def status(text: str) -> tuple[int, str]:
        page = tmp_path / "page.md"
        page.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(QUOTES), "--check", str(page)],
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, done.stderr

    mark = "<!-- output of the block above -->"
    page = "```\necho {}\n```\n\nprints\n\n" + mark + "\n```\n1\n```\n"
    assert status(page.format("1")) == (0, "")
    stale, said = status(page.format("2"))
    assert stale == 1 and "-1\n+2\n" in said
    failed, said = status(page.format("1; exit 3"))
    assert failed == 1 and "status 3" in said
    astray, said = status(page.format("1").replace(mark, mark + "\n"))
    assert astray == 1 and "marked" in said


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("src/wire/frame.h", "FrameType"),
        ("src/wire/hello.h", "Verdict"),
        ("src/wire/messages.h", "Participants"),
        ("src/wire/collective.h", "Collective"),
        ("src/wire/collective.h", "Algorithm"),
        ("src/base/dtype.h", "DType"),
        ("src/base/dtype.h", "ReduceOp"),
        ("src/base/status.h", "Code"),
    ],
)
def test_protocol_page_numbers_every_value(file: str, name: str) -> None:
    page = source("docs/protocol.md")
    table = re.search(rf"<!-- enum {name} -->\n(.*?)(?:\n\n|\Z)", page, re.DOTALL)
    assert table is not None, f"docs/protocol.md has no table of {name}"
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", table.group(1), re.MULTILINE)
    assert {label: int(value) for value, label in rows} == enumerators(source(file), name)


def test_protocol_page_has_the_version() -> None:
    version = re.search(r"kProtocolVersion = (\d+);", source("src/wire/hello.h"))
    assert version is not None
    assert f"protocol version {version.group(1)}" in source("docs/protocol.md")


CLAIMS = ROOT / "tools" / "check_claims.py"


def check_claims(*arguments: str, folder: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(CLAIMS), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_figure_of_the_pages_has_an_entry() -> None:
    status, said = check_claims()
    assert status == 0, said


def test_a_figure_without_an_entry_and_an_entry_without_a_figure_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "claims.toml").write_text(
        """
        [machines]
        here = "a machine"
        [[claim]]
        name = "speed"
        command = "echo 1.7 s"
        date = 2026-11-29
        commit = "217ff929"
        machine = "here"
        minutes = 1
        pages = {"docs/page.md" = ["takes 1.5 s", "# Measured"]}
        [given]
        limits = {"docs/page.md" = ["after 60 s"]}
        [exempt]
        """
    )
    page = tmp_path / "docs" / "page.md"
    held = "It takes 1.5 s, as\nPython 3.11 or `99 %`, and gives up after 60 s.\n\n"
    held += "# Measured\n\n| a | 0.25 |\n"

    def check(text: str) -> tuple[int, str]:
        page.write_text(text)
        return check_claims("--pages", "docs/page.md", folder=tmp_path)

    assert check(held)[0] == 0
    for figure in ("1.6 s", "12 %", "0.8 of it", "3 GB/s", "a third of the time", "1.2 times"):
        status, said = check(f"{held}\n# More\n\nIt takes {figure}.\n")
        assert status == 1 and "has no entry" in said, (figure, said)
    for head in ("seconds", "a round (ms)"):
        status, said = check(f"{held}\n# More\n\n| step | {head} |\n|---|---|\n| 3 | 18 |\n")
        assert status == 1 and said.count("has no entry") == 1, (head, said)
    status, said = check(held.replace("1.5 s", "a while"))
    assert status == 1 and "has no figure in 'takes 1.5 s'" in said
    status, said = check_claims("--run", folder=tmp_path)
    assert status == 0 and "takes 1.5 s" in said and "   1.7 s" in said


def test_every_figure_of_the_benchmarks_has_its_value() -> None:
    page = source("docs/benchmarks.md")
    measured = page[page.index("## What was measured") : page.index("## The benchmark")]
    names = re.findall(r'^    "([\w-]+)": \w+,$', source("benchmarks/figures.py"), re.MULTILINE)
    assert "link-8x8" in names
    for name in names:
        assert f"| `{name}` |" in page, name
        assert f"`{name}`" in measured, name
        assert re.search(rf"figures\.py .*{name}\b", source("docs/claims.toml")), name


def test_the_readme_stays_short() -> None:
    assert len(source("README.md").splitlines()) <= 120


def test_compatibility_page_is_current() -> None:
    tool = ROOT / "tools" / "make_compatibility_doc.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_troubleshooting_quotes_messages_that_exist() -> None:
    quoted = re.findall(r"^\| `([^`]+)` \|", source("docs/troubleshooting.md"), re.MULTILINE)
    assert quoted
    texts = []
    for folder, endings in (("src", (".cc", ".h")), ("bindings", (".cc",)), ("python", (".py",))):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings:
                texts.append(path.read_text(encoding="utf-8"))
    # Adjacent string literals form one text.
    sources = re.sub(r"\"\s*f?\"", "", "\n".join(texts))
    missing = [text for text in quoted if text not in sources]
    assert not missing, f"no message says {missing}; docs/troubleshooting.md quotes them"


def test_examples_make_secrets_that_nobody_else_can_read() -> None:
    found = []
    for path in (*PAGES, *(ROOT / "python").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found += re.findall(r".{16}openssl rand -hex 32 > .*", f"{'':16}{line}")
    assert len(found) >= 4
    wrong = [
        line
        for line in found
        if not re.match(r".*\(umask 077; openssl rand -hex 32 > (\$HOME)?/", line)
    ]
    assert not wrong, wrong


def test_the_image_has_a_numeric_user() -> None:
    # The kubelet refuses a name under runAsNonRoot, because it cannot know that it is not root.
    assert re.search(r"^USER [1-9]\d*$", source("examples/Dockerfile"), re.MULTILINE)


def test_every_example_is_in_the_gallery() -> None:
    page = source("docs/examples.md")
    for example in (ROOT / "examples").glob("*.py"):
        assert f"(../examples/{example.name})" in page, example.name


def test_settings_that_pages_name_exist() -> None:
    known = set(re.findall(r"`(HERRING_\w+)`", source("docs/settings.md")))
    assert "HERRING_TIMEOUT" in known
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        named = set(re.findall(r"\bHERRING_[A-Z_]+\b", page.read_text(encoding="utf-8")))
        unknown = named - known - NOT_SETTINGS
        assert not unknown, f"{page.name} names {sorted(unknown)}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert page.is_file()
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def test_every_paper_has_title_authors_and_year() -> None:
    listed = source("docs/papers.md")
    for family, title in (
        ("Thangakrishnan", "Herring: Rethinking the Parameter Server at Scale for the Cloud"),
        (
            "Hoefler",
            "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective",
        ),
        ("Iandola", "Distributed deep neural network training: A measurement study"),
        ("Awan", "Scalable Distributed DNN Training using TensorFlow and CUDA-Aware MPI"),
    ):
        (entry,) = (one for one in listed.split("\n- ") if family in one)
        words = " ".join(entry.split())
        assert title in words and re.search(r"\b20\d\d\.", words), words
    for page in ("algorithms", "partial"):
        assert "](papers.md)" in source(f"docs/{page}.md"), page
    for family in ("Thangakrishnan", "Hoefler"):
        assert f"family-names: {family}" in source("CITATION.cff")
