"""What type checkers and `dir()` see of the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import herring

PACKAGE = Path(herring.__file__).parent

PROGRAM = """
import herring
import numpy as np

herring.init(timeout=60)
rank: int = herring.rank()
array = herring.allreduce(np.zeros(3), "sum", name="x", timeout=3.0)
handle: herring.Handle = herring.allreduce_async(array)
handle.wait()
with_planned: type[herring.PlannedReduction] = herring.PlannedReduction
partial = herring.allreduce(array, sync=herring.Quorum(2))
herring.rank(3)  # call-arg
herring.allreduce(array, op=1)  # arg-type
herring.allreduce(array, opp="sum")  # call-arg
handle.wait(timeout="soon")  # arg-type
size: str = herring.size()  # assignment
herring.nothing()  # attr-defined
"""


def test_every_name_is_listed_and_there():
    assert set(herring.__all__) <= set(dir(herring))
    for name in herring.__all__:
        assert getattr(herring, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = herring.nothing
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.timeout(300)
def test_mypy_finds_wrong_arguments(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    check = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *("--cache-dir", str(tmp_path / "cache"), str(program)),
        ],
        env={**os.environ, "MYPYPATH": str(PACKAGE.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = re.findall(r"program.py:(\d+): error: .*\[([\w-]+)\]", check.stdout)
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = [(str(n), line.split("  # ")[1]) for n, line in lines if "  # " in line]
    assert found == expected, check.stdout + check.stderr
