"""The functions of ``horovod.common.util`` that scripts use."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

from herring.base.split import even_parts
from herring.errors import InvalidArgumentError

_PACKAGES = {"horovod.torch": "torch", "horovod.tensorflow": "tensorflow"}


def check_extension(ext_name: str, *_: Any) -> None:
    """Checks that Herring has Horovod's API for a framework, and that the framework is installed.

    Args:
      ext_name: "horovod.torch" or "horovod.tensorflow".

    Raises:
      ImportError: the name is unknown, or the framework is not installed.
    """
    package = _PACKAGES.get(ext_name)
    if package is None:
        raise ImportError(f"{ext_name}: Herring has Horovod's API for {', '.join(_PACKAGES)}")
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{ext_name}: {package} is not installed")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether Herring has Horovod's API for a framework, and the framework is installed.

    Args:
      ext_base_name: "torch" or "tensorflow".
      verbose: ignored.
    """
    del verbose
    try:
        check_extension(f"horovod.{ext_base_name}")
    except ImportError:
        return False
    return True


def split_list(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Splits a list into parts whose lengths differ by at most one; longer parts come first."""
    ends = list(itertools.accumulate(even_parts(len(items), parts)))
    return [items[first:last] for first, last in zip([0, *ends], ends)]


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework sees a GPU.

    Args:
      ext_base_name: "tensorflow" or "torch".
      verbose: ignored.
    """
    del verbose
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    import torch

    return torch.cuda.is_available()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether `num_rank` is a power of two."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    """Returns whether `x` can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether version `ver` is `target` or later; needs the package `packaging`.

    Args:
      ver: a version, such as "2.13.0+cpu".
      target: the version to compare with, in the form major.minor.patch.

    Raises:
      InvalidArgumentError: an argument is not a string, or `target` does not have three parts.
    """
    from packaging import version

    for name, value in (("ver", ver), ("target", target)):
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name} is {value!r}; it must be a string")
    if target.count(".") != 2:
        raise InvalidArgumentError(f"target is {target!r}; it must be of the form 2.13.0")
    return version.parse(ver) >= version.parse(target)
