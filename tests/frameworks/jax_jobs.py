"""Jobs that import JAX and herring.jax, for the tests of the adapter."""

from __future__ import annotations

from jobs import expect_success, run_job

TWO = ["-n", "2"]
SETUP = """
import jax, jax.numpy as jnp
import herring.jax as hj
rank, size = herring.rank, herring.size

def fails(kind, text, call, *arguments):
    # A program's error carries the name and the text of Herring's.
    try:
        jax.block_until_ready(call(*arguments))
    except jax.errors.JaxRuntimeError as error:
        assert kind in str(error) and text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind}")
"""


def run(layout: list[str], script: str, timeout: float = 300, **environment: str) -> str:
    return expect_success(
        run_job(layout, SETUP + script, timeout, JAX_PLATFORMS="cpu", **environment)
    )
