"""Tests examples/dask_digits.py: workers and servers are tasks of Dask."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs distributed", allow_module_level=True)

from cases import example


@pytest.mark.parametrize(("workers", "servers"), [(2, 0), (2, 1)])
def test_digits(workers: int, servers: int) -> None:
    options = ["--workers", str(workers), "--servers", str(servers)]
    said = example("dask_digits.py", *options)
    assert (said["workers"], said["servers"], said["identical"]) == (workers, servers, True)
    assert said["accuracy"] > 0.9
