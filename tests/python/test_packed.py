"""Gradients that travel in 8 bits with a scale for each 32 numbers."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounds_in_8_bits(layout: str) -> None:
    assert "are right" in expect_success(run_job(LAYOUTS[layout], program("packed_rounds")))
