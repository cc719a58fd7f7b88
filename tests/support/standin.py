"""For tests that need the stand-in for CUDA's driver (tests/device/driver.h)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

import warm
from gpus import ENVIRONMENT, FOLDER
from launched import HERRING

STANDIN = pytest.mark.skipif(
    not (FOLDER / "libcuda.so.1").exists(),
    reason="the stand-in for CUDA's driver is not built: make test builds it",
)


def checked(*options: str, **environment: str) -> dict[str, dict[str, Any]]:
    """Returns the findings of `herring check` on the stand-in, by name."""
    done = warm.run(
        [*HERRING, "check", "--json", *options],
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)["findings"]}
