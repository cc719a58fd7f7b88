"""Marks tests that need the stand-in for CUDA's driver (tests/device/driver.h)."""

from __future__ import annotations

import pytest

from gpus import FOLDER

STANDIN = pytest.mark.skipif(
    not (FOLDER / "libcuda.so.1").exists(),
    reason="the stand-in for CUDA's driver is not built: make test builds it",
)
