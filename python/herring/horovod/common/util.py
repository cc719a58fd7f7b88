"""What scripts look for in ``horovod.common.util``."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

from herring.errors import InvalidArgumentError
from herring.split import even_parts

__all__ = [
    "check_extension",
    "extension_available",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "num_rank_is_power_2",
    "split_list",
]


_PACKAGES = {"horovod.torch": "torch", "horovod.tensorflow": "tensorflow", "horovod.mxnet": "mxnet"}


def check_extension(ext_name: str, *_: Any) -> None:
    """Says nothing where Horovod's extension for a framework is there.

    Raises:
      ImportError: there is none, or its framework is not installed.
    """
    package = _PACKAGES.get(ext_name)
    if package is None:
        raise ImportError(f"{ext_name}: Herring has Horovod's API for {', '.join(_PACKAGES)}")
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{ext_name}: {package} is not installed")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is an extension, and its framework is installed.

    Args:
      ext_base_name: "torch", "tensorflow" or "mxnet".
      verbose: no meaning.
    """
    del verbose
    try:
        check_extension(f"horovod.{ext_base_name}")
    except ImportError:
        return False
    return True


def split_list(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Cuts a list into so many parts, whose lengths differ by at most one; longer ones first."""
    ends = list(itertools.accumulate(even_parts(len(items), parts)))
    return [items[first:last] for first, last in zip([0, *ends], ends)]


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU.

    Args:
      ext_base_name: "tensorflow", "mxnet" or "torch".
      verbose: no meaning.
    """
    del verbose
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    if ext_base_name == "mxnet":
        import mxnet

        return bool(mxnet.context.num_gpus())
    import torch

    return torch.cuda.is_available()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    """Whether it can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is another one or a later one; needs the package `packaging`.

    Args:
      ver: a version, such as "2.13.0+cpu".
      target: the one to compare with, as major.minor.patch.

    Raises:
      InvalidArgumentError: one of them is not a string, or `target` does not have three parts.
    """
    from packaging import version

    for name, value in (("ver", ver), ("target", target)):
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a string")
    if target.count(".") != 2:
        raise InvalidArgumentError(f"target is {target!r}; it must be of the form 2.13.0")
    return version.parse(ver) >= version.parse(target)
