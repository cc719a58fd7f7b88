"""Makes workers treat CPU tensors as tensors on the stand-in's GPU; memory is not copied.

So the code of `herring.torch` for GPUs runs without one: arenas on the device, copies out and back,
and their order. Torch executes at once what a GPU would queue, so nothing orders torch's work with
the stand-in's streams. The benchmark orders what is copied back in a stream of its own, for which
it must wait.
"""

from __future__ import annotations

import os

if "HERRING_RANK" in os.environ:
    from gpus import Adopted, BenchGpus
    from herring.bench import gpus
    from herring.torch import devices, layout

    devices.gpu_of = lambda tensor: 0
    devices.exported = Adopted
    layout._GPU_BATCH_BYTES = layout._BATCH_BYTES  # Small models send some gradients early, too.
    gpus.Gpus = BenchGpus
