"""Tests examples/spark_digits.py: workers and servers are tasks of a barrier stage."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("needs pyspark", allow_module_level=True)
if shutil.which("java") is None:
    pytest.skip("needs java: apt-get install default-jre-headless", allow_module_level=True)

from cases import example


@pytest.mark.parametrize(("workers", "servers"), [(2, 0), (2, 1)])
def test_digits(workers: int, servers: int) -> None:
    options = ["--workers", str(workers), "--servers", str(servers)]
    said = example("spark_digits.py", *options)
    assert (said["workers"], said["servers"], said["identical"]) == (workers, servers, True)
    assert said["accuracy"] > 0.9
