"""Lets workers take tensors of the CPU for ones on a GPU: the stand-in's, with the same memory.

So `herring.torch` runs its ways for GPUs without one: arenas on the device, copies out and back,
and their order. What torch queues is done at once, so CUDA does not order the streams of the two.
The benchmark has a stream, in which what is copied back is ordered: it must wait for that.
"""

from __future__ import annotations

import os

if "HERRING_RANK" in os.environ:
    from gpus import Adopted, BenchGpus
    from herring.bench import gpus
    from herring.torch import devices, layout

    devices.gpu_of = lambda tensor: 0
    devices.exported = Adopted
    layout._GPU_BATCH_BYTES = layout._BATCH_BYTES  # for small models, too, some go early
    gpus.Gpus = BenchGpus
