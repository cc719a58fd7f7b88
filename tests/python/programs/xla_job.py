"""Joins a job whose programs call Herring as XLA does; what such programs share."""

from gpu_job import GpuArray, driver, gpus, rank, size
from herring import _core
from herring.arrays import runtime
from xla_programs import Program

__all__ = ["GpuArray", "Program", "array", "driver", "gpus", "rank", "size"]

_core.jax.attach(runtime.job())
runtime.forget_job.append(_core.jax.detach)


def array(values):
    return GpuArray(values, rank % gpus)
