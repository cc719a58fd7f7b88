"""Makes workers create tensors, and draw random numbers, on the GPU unless they name a device.

So the cases of `torch_cases`, `backend_cases` and `horovod_cases` run on a real GPU.
"""

from __future__ import annotations

import os

if "HERRING_RANK" in os.environ:
    import torch
    import torch.distributed as dist

    class _Generator(torch.Generator):
        def __new__(cls, device: object = "cuda") -> _Generator:
            return super().__new__(cls, device)

    torch.set_default_device("cuda")
    torch.Generator = _Generator
    if not hasattr(dist, "all_gather_single"):  # names of PyTorch 2.13
        dist.all_gather_single = dist.all_gather_into_tensor
        dist.reduce_scatter_single = dist.reduce_scatter_tensor
