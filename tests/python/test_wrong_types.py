"""Every public function answers values of wrong types with a clear error of Herring's own."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from herring.arrays.collectives import shape_of
from herring.errors import InvalidArgumentError
from jobs import expect_success, program, run_job


@pytest.mark.parametrize("functions", ["core", "torch"])
def test_wrong_types_are_refused_in_words(
    functions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if functions == "torch":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # some values are right for a path, which is written then
    # The job has one rank: which calls a second rank must make would depend on the wrong values.
    job = run_job(["-n", "1"], program(f"wrong_values_{functions}"), HERRING_LOG_LEVEL="error")
    assert "all in words" in expect_success(job), job.stdout[-6000:]


def test_usual_mistakes_say_what_to_do() -> None:
    assert "in words" in expect_success(run_job(["-n", "1"], program("usual_mistakes")))


@pytest.mark.parametrize("value", [[[1], [2, 3]], types.SimpleNamespace(shape=None)])
def test_what_has_no_shape_is_not_an_array(value: object) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"expected an array, got {type(value).__name__}"
    ):
        shape_of(value)


def test_adapter_for_torch_says_what_to_install() -> None:
    script = "import sys; sys.modules['torch'] = None; import herring.torch"
    run = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert "herring.torch needs PyTorch 2.9 or newer: pip install" in run.stderr, run.stderr
