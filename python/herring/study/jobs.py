"""Measuring jobs on this machine: a function that all workers of a Herring job run."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from herring.errors import ConfigurationError

__all__ = ["run_workers", "sleep_until", "start_together"]


def run_workers(function: str, workers: int, **options: Any) -> list[dict[str, Any]]:
    """Runs ``module:function`` with these options in every worker; returns what rank 0 returns.

    Raises:
      ConfigurationError: the job failed; has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        job = subprocess.run(
            [
                *(sys.executable, "-m", "herring.launch.cli", "run", "-n", str(workers)),
                *("--timeout", "600", "--", sys.executable, "-m", "herring.study.jobs"),
                *(function, json.dumps(options), str(result)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if job.returncode != 0:
            raise ConfigurationError(f"the measuring job failed:\n{job.stdout[-2000:]}")
        return json.loads(result.read_text())


def start_together(margin: float) -> float:
    """A moment soon, the same for all workers of this machine; a barrier."""
    import numpy as np

    import herring

    moment = np.array([time.monotonic() + margin])
    herring.allreduce(moment, "max")
    return float(moment[0])


def sleep_until(moment: float) -> None:
    """Returns at that moment of the monotonic clock, or at once if it is past."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def _worker(function: str, options: str, result: str) -> None:
    import herring

    module, _, name = function.partition(":")
    herring.init()
    rows = getattr(importlib.import_module(module), name)(**json.loads(options))
    if herring.rank() == 0:
        pathlib.Path(result).write_text(json.dumps(rows))
    herring.shutdown()


if __name__ == "__main__":
    _worker(*sys.argv[1:])
