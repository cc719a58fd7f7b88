"""Errors reach other processes whole: pools, Ray and Dask pickle what a worker raises."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jobs import program


@pytest.mark.timeout(100)
def test_every_error_of_the_package_can_be_pickled_and_copied() -> None:
    done = subprocess.run(
        [sys.executable, *program("errors_travel")], capture_output=True, text=True, timeout=95
    )
    assert done.returncode == 0, done.stdout + done.stderr
