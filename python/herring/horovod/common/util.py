"""What scripts look for in ``horovod.common.util``."""

from __future__ import annotations

from typing import Any

__all__ = ["check_extension", "gpu_available", "num_rank_is_power_2"]


def check_extension(ext_name: str, *_: Any) -> None:
    """Says nothing where Horovod's extension for a framework is there: of PyTorch it is.

    Raises:
      ImportError: of any other framework.
    """
    if ext_name != "horovod.torch":
        raise ImportError(f"{ext_name}: Herring has Horovod's API for PyTorch only")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether torch sees a GPU."""
    del ext_base_name, verbose
    import torch

    return torch.cuda.is_available()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0
