"""Joins a job whose arrays lie on GPUs; what the programs of such jobs share.

The module `gpus` is that of real GPUs (`tests/gpu`) or that of the stand-in for CUDA's driver.
"""

import os

import herring
from gpus import Driver, GpuArray

__all__ = ["GpuArray", "driver", "gpus", "rank", "size"]

driver = Driver()
driver.jitter(int(os.environ.get("JITTER", "300")))
herring.init()
rank, size = herring.rank(), herring.size()
gpus = driver.count()
