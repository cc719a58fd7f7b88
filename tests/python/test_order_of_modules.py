"""The style check finds what breaks the order of modules, and tensors without a device."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("check_style", ROOT / "tools" / "check_style.py")
assert _spec is not None and _spec.loader is not None
check_style = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_style)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_style, "OPTIONAL_PARTS", {})
    for name in ("", "arrays/", "launch/", "rendezvous/", "torch/"):
        _write(f"python/herring/{name}__init__.py", "")
    _write("python/herring/arrays/names.py", "")
    _write("python/herring/command/cli.py", "")
    _write("CMakeLists.txt", "foreach(module base wire server)\n")
    return tmp_path


def _write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def _of_python() -> list[str]:
    return check_style.python_arrows(sorted(Path("python").rglob("*.py")))


@pytest.mark.parametrize(
    "text",
    [
        "import herring.command.cli\n",
        "from herring.command import cli\n",
        "from herring import launch\n",
        "from ..command import cli\n",
        "from .. import launch\n",
        "import herring\n",
        "from herring import allreduce\n",
        "def late():\n    from herring.torch import allreduce\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import herring.torch\n",
        "import importlib\nimportlib.import_module('herring.command.cli')\n",
        "from importlib import import_module\nimport_module('herring.torch')\n",
    ],
)
def test_whatever_leads_up_is_found(house: Path, text: str) -> None:
    _write("python/herring/arrays/names.py", text)
    found = _of_python()
    assert len(found) == 1
    assert found[0].startswith("python/herring/arrays/names.py:")
    assert "belongs to a module below herring.arrays" in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "from herring.rendezvous import detect\n",
        "from herring import _core, errors\n",
        "from herring import rendezvous\n",
        "from . import groups\n",
        "import os, numpy\n",
    ],
)
def test_what_leads_down_or_stays_in_its_module_is_fine(house: Path, text: str) -> None:
    _write("python/herring/arrays/groups.py", "")
    _write("python/herring/arrays/names.py", text)
    assert _of_python() == []


def test_a_file_of_no_listed_module_is_found(house: Path) -> None:
    _write("python/herring/loose.py", "")
    assert [line.split(":")[0] for line in _of_python()] == ["python/herring/loose.py"]


def test_an_optional_part_may_be_imported_from_its_place_only(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {("herring.command.cli", "herring.torch"): "the reason"}
    monkeypatch.setattr(check_style, "OPTIONAL_PARTS", parts)
    _write("python/herring/command/cli.py", "def late():\n    import herring.torch\n")
    assert _of_python() == []
    _write("python/herring/launch/other.py", "import herring.torch\n")
    assert [line.split(":")[0] for line in _of_python()] == ["python/herring/launch/other.py"]


def test_an_exception_that_nobody_uses_is_found(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {("herring.command.cli", "herring.torch"): "the reason"}
    monkeypatch.setattr(check_style, "OPTIONAL_PARTS", parts)
    assert _of_python() == ["OPTIONAL_PARTS: herring.command.cli does not import herring.torch"]


def test_a_circle_in_a_module_is_found(house: Path) -> None:
    _write("python/herring/arrays/names.py", "from herring.arrays import groups\n")
    _write("python/herring/arrays/groups.py", "def late():\n    from .names import one\n")
    (found,) = _of_python()
    assert "import each other" in found


def test_includes_that_lead_up_are_found(house: Path) -> None:
    fine = _write("src/server/server.cc", '#include "server/server.h"\n#include "wire/frame.h"\n')
    wrong = _write("src/wire/frame.h", '#include <map>\n#include "server/server.h"\n')
    lab = _write("lab/src/simulate/job.h", '#include "virtual/loop.h"\n')
    core = _write("src/base/clock.cc", '#include "simulate/job.h"\n')
    loose = _write("src/new/file.cc", "")
    assert check_style.core_arrows([fine, wrong, lab, core, loose]) == [
        "src/wire/frame.h:2: server is a module below wire",
        "src/base/clock.cc:1: simulate is a module below base",
        "src/new/file.cc: in no module; CMakeLists.txt has them in their order",
    ]


def test_tensors_on_the_default_device_are_found(house: Path) -> None:
    file = _write("python/herring/torch/x.py", 'torch.zeros(1, device="cpu")\ntorch.empty(1)\n')
    assert check_style.placeless(file) == [
        "python/herring/torch/x.py:2: torch.empty makes a tensor, so it needs device="
    ]


def test_sleeps_and_limits_of_tests_are_found(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"time.sleep({seconds})" for seconds in (0.1, 0.2, 3, 60)]
    lines += [f"assert time.monotonic() - start {sign} 5" for sign in "<>"]
    file = _write("tests/python/test_x.py", "\n".join(lines) + "\n")
    wrong = [
        f"tests/python/test_x.py:{number}: depends on how fast the machine is; wait for an event"
        for number in (2, 3, 5)
    ]
    assert check_style.clocks([file]) == wrong
    monkeypatch.setitem(check_style.SLEEPERS, "tests/python/test_x.py", 3)
    assert check_style.clocks([file]) == []
    monkeypatch.setitem(check_style.SLEEPERS, "tests/python/test_x.py", 4)
    assert "allows 4, but has 3" in check_style.clocks([file])[0]


def test_each_module_of_the_core_says_what_it_is() -> None:
    order = check_style.CORE_MODULES.search((ROOT / "CMakeLists.txt").read_text())
    picture = (ROOT / "docs/architecture.md").read_text().split("```")[1]
    for module in order[1].split():
        readme = (ROOT / "src" / module / "README.md").read_text()
        assert readme.startswith(f"# {module}\n"), module
        assert len(readme.splitlines()) <= 25, module
        assert re.search(rf"^   (\w+  )*{module}\b", picture, re.MULTILINE), module
