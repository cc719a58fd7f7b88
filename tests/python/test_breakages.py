"""make breakages and make coverage: places, tests that concern them, and rooms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
breakable = pytest.importorskip("breakable")
concerned = pytest.importorskip("concerned")
coverage = pytest.importorskip("print_coverage")
unseen = pytest.importorskip("unseen")

PYTHON = '''\
"""Waits at most 3 seconds if x < 3."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_MOST = 7  # of them: 1, 2


class Box:
    def put(self, item: int, at: "int | None" = None) -> bool:
        assert isinstance(item, int) and item > 0
        with self._lock:
            if item < _MOST:
                self.items.append(item)
            self.count += 1
            self.size = len(self.items) + 1
        logger.warning("there are 5")
        print(2)
        if at is None and now < self.deadline:
            raise ValueError(f"{item} of 3")
        return True
'''
FOUND_IN_PYTHON = {
    "bound moved by one": [
        ("if item < _MOST:", "if item <= _MOST:"),
        ("self.size = len(self.items) + 1", "self.size = len(self.items)"),
    ],
    "comparison turned": [
        ("if at is None and now < self.deadline:", "if at is None and now > self.deadline:"),
        ("if at is None and now < self.deadline:", "if at is not None and now < self.deadline:"),
        ("if item < _MOST:", "if item > _MOST:"),
    ],
    "condition negated": [
        ("if at is None and now < self.deadline:", "if not (at is None and now < self.deadline):"),
        ("if item < _MOST:", "if not (item < _MOST):"),
    ],
    "constant changed": [
        ("_MOST = 7  # of them: 1, 2", "_MOST = 8  # of them: 1, 2"),
        ("return True", "return False"),
        ("self.count += 1", "self.count += 2"),
        ("self.size = len(self.items) + 1", "self.size = len(self.items) + 2"),
    ],
    "error swallowed": [
        ('raise ValueError(f"{item} of 3")', "pass"),
    ],
    "lock not taken": [
        ("with self._lock:", 'with __import__("contextlib").nullcontext():'),
    ],
    "statement left out": [
        ("self.count += 1", "pass"),
        ("self.items.append(item)", "pass"),
        ("self.size = len(self.items) + 1", "pass"),
    ],
}
CC = """\
// A comment with x < 3; and i = 1;
#include "base/status.h"
#define LIMIT (1 < 2)

namespace herring {
constexpr int kMost = 20;
static_assert(kMost < 30);

class Box {
 public:
  Box(int most);
  virtual int size() const = 0;
  template <typename T>
  Status put(int item);
};

Status Box::put(int item) {
  std::lock_guard lock(mutex_);
  if (item <= kMost) items_.push_back(
      item);
  const char* text = "a < 5; b = 6;";
  HERRING_RETURN_IF_ERROR(check(item));
  if (!known.ok()) return known.status();
  if (auto found = find(item); found != nullptr) {
    found->count = '1';
    ++size_;
    return Status(Code::kInternal, concat("item ", item));
  }
  log(LogLevel::kWarning, "more than ", kMost + 1);
  std::unique_lock later(mutex_);
  for (int i = 0; i < item; ++i) run([&] { step(); });
  return {};
}
}  // namespace herring
"""
FOUND_IN_CC = {
    "bound moved by one": [
        (
            "for (int i = 0; i < item; ++i) run([&] { step(); });",
            "for (int i = 0; i <= item; ++i) run([&] { step(); });",
        ),
        ("if (item <= kMost) items_.push_back(", "if (item < kMost) items_.push_back("),
    ],
    "comparison turned": [
        (
            "for (int i = 0; i < item; ++i) run([&] { step(); });",
            "for (int i = 0; i > item; ++i) run([&] { step(); });",
        ),
        (
            "if (auto found = find(item); found != nullptr) {",
            "if (auto found = find(item); found == nullptr) {",
        ),
        ("if (item <= kMost) items_.push_back(", "if (item >= kMost) items_.push_back("),
    ],
    "condition negated": [
        ("if (!known.ok()) return known.status();", "if (!(!known.ok())) return known.status();"),
        (
            "if (auto found = find(item); found != nullptr) {",
            "if (auto found = find(item); !(found != nullptr)) {",
        ),
        ("if (item <= kMost) items_.push_back(", "if (!(item <= kMost)) items_.push_back("),
    ],
    "constant changed": [
        ("constexpr int kMost = 20;", "constexpr int kMost = 40;"),
        (
            "for (int i = 0; i < item; ++i) run([&] { step(); });",
            "for (int i = 1; i < item; ++i) run([&] { step(); });",
        ),
    ],
    "error swallowed": [
        ("HERRING_RETURN_IF_ERROR(check(item));", "(void)(check(item));"),
        ("if (!known.ok()) return known.status();", ";"),
        ('return Status(Code::kInternal, concat("item ", item));', "return {};"),
    ],
    "lock not taken": [
        ("std::lock_guard lock(mutex_);", ";"),
        ("std::unique_lock later(mutex_);", "std::unique_lock later(mutex_, std::defer_lock);"),
    ],
    "statement left out": [
        ("++size_;", ";"),
        (
            "for (int i = 0; i < item; ++i) run([&] { step(); });",
            "for (int i = 0; i < item; ++i) run([&] { ; });",
        ),
        ("found->count = '1';", ";"),
    ],
}


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("python/herring/box.py", PYTHON, FOUND_IN_PYTHON),
        ("src/server/box.cc", CC, FOUND_IN_CC),
    ],
)
def test_the_places_are_these(path: str, text: str, expected: dict[str, list[Any]]) -> None:
    found: dict[str, list[tuple[str, str]]] = {}
    for place in breakable.places(path, text):
        assert text.split("\n")[place.line - 1].strip() == place.was
        found.setdefault(place.kind, []).append(place.difference(text))
    assert {kind: sorted(lines) for kind, lines in found.items()} == expected


def test_python_that_is_broken_compiles() -> None:
    path = ROOT / "python/herring/lobby/notice.py"
    text = path.read_text(encoding="utf-8")
    for place in breakable.places(path.as_posix(), text):
        compile(place.broken(text), path.name, "exec")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    for name in ("src/a.cc", "src/b.h"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CC.replace("item", path.stem))
    return tmp_path


def test_the_same_seed_draws_the_same_places_of_all_kinds(sample: Path) -> None:
    first, again, other = (
        [next(places) for places in breakable.choose(sample, "src", seed, 14)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert [place.kind for place in first] == [*breakable.KINDS, *breakable.KINDS]
    assert len({(place.path, place.start, place.new) for place in first}) == 14


def test_another_file_changes_no_place_that_is_still_drawn(sample: Path) -> None:
    before = {next(places) for places in breakable.choose(sample, "src", 1, 14)}
    (sample / "src/a.cc").write_text(CC.replace("item", "thing"))
    after = {next(places) for places in breakable.choose(sample, "src", 1, 14)}
    assert {place for place in before if place.path == "src/b.h"} & after


def test_what_cannot_be_compiled_is_drawn_again(sample: Path) -> None:
    places = breakable.choose(sample, "src", 1, 7)[0]
    first, second = next(places), next(places)
    assert first.kind == second.kind and first != second


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("python/herring/lobby/generations.py", "test_lobby_generations.py"),
        ("python/herring/launch/restarts.py", "test_launch_restarts.py"),
        ("python/herring/torch/reducer.py", "test_torch.py"),
        ("python/herring/flight/analysis.py", "test_flight_analysis.py"),
    ],
)
def test_tests_of_a_python_file_are_found(path: str, test: str) -> None:
    names = [Path(step.name).name for step in concerned.python_steps(ROOT, path, {})]
    assert test in names and len(names) <= concerned.MOST_FILES


def test_tests_of_a_cc_file_begin_with_its_own() -> None:
    steps = concerned.cc_steps(ROOT, "src/server/forming.cc")
    assert steps[0].name == "build/tests/test_server"
    assert "build/lab/tests/unit/test_simulate" in [step.name for step in steps]
    assert {"gtest", "ctest", "pytest"} == {step.kind for step in steps}
    for step in steps:
        assert step.kind != "pytest" or (ROOT / step.name).is_file()


def test_a_missing_lock_is_looked_for_by_thread_sanitizer() -> None:
    plain, races, *others = concerned.cc_steps(ROOT, "src/server/forming.cc", races=True)
    assert (plain.name, plain.preset) == ("build/tests/test_server", "default")
    assert (races.name, races.preset) == ("build-thread/tests/test_server", "thread")
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
    folders = {one["name"]: one["binaryDir"] for one in presets["configurePresets"]}
    for step in (plain, races):
        assert folders[step.preset] == f"${{sourceDir}}/{step.name.partition('/')[0]}"
    names = [step.name for step in others]
    assert "build-thread/tests/test_job" in names
    assert "build-thread/lab/tests/unit/test_simulate" not in names


@pytest.mark.parametrize(("path", "was", "now"), unseen.UNSEEN)
def test_what_cannot_be_seen_is_still_there(path: str, was: str, now: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    edits = [place.difference(text) for place in breakable.places(path, text)]
    assert (was, now) in edits


@pytest.mark.parametrize(
    ("kind", "output", "name"),
    [
        (
            "pytest",
            "..F\nFAILED tests/python/test_x.py::test_y[a b] - assert 1 == 2\n1 failed in 0.1s",
            "tests/python/test_x.py::test_y[a b]",
        ),
        ("pytest", "ERROR tests/python/test_x.py\n1 error in 0.1s", "tests/python/test_x.py"),
        ("gtest", "x.cc:3: Failure\n[  FAILED  ] Ring.Grows (0 ms)\n", "Ring.Grows"),
        ("gtest", "[  FAILED  ] All/Ring.Grows/2, where GetParam() = 3", "All/Ring.Grows/2"),
        ("ctest", "The following tests FAILED:\n\t 7 - random_deaths (Failed)\n", "random_deaths"),
        ("gtest", "Segmentation fault", ""),
    ],
)
def test_the_test_that_failed_is_named(kind: str, output: str, name: str) -> None:
    assert concerned.Step(kind, "any").failed(output) == name


def test_coverage_is_summed_by_room() -> None:
    core = {
        "filename": "src/base/ranks.cc",
        "line_total": 10,
        "line_covered": 9,
        "branch_total": 4,
        "branch_covered": 1,
    }
    other = {**core, "filename": "src/base/log.cc", "branch_total": 0, "branch_covered": 0}
    found = coverage.rooms(coverage.counted({"files": [core, other]}))
    assert found == {"src/base": (20, 18, 4, 1), "src in all": (20, 18, 4, 1)}
    counts = {"num_statements": 8, "covered_lines": 2, "num_branches": 0, "covered_branches": 0}
    files = {
        f"python/herring/{name}.py": {"summary": counts} for name in ("units", "lobby/a", "lobby/b")
    }
    found = coverage.rooms(coverage.counted({"files": files}))
    assert found["python/herring"] == (8, 2, 0, 0)
    assert found["python/herring/lobby"] == (16, 4, 0, 0)
    assert list(found)[-1] == "python/herring in all"
    assert coverage.table(found).splitlines()[-1].split()[-5:] == ["24", "25.0", "%", "0", "-"]
