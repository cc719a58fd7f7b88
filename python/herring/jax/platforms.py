"""Decides how JAX calls Herring: natively, or by a callback with copies through host memory."""

from __future__ import annotations

import functools
import os

import jax

from herring import _core
from herring.arrays.devices import described_gpus
from herring.errors import ConfigurationError, HerringError
from herring.rendezvous.settings import value_of

START, FINISH = "herring_start", "herring_finish"


def implementation() -> str:
    """Returns how programs call Herring: by the "ffi" handler, or by a "callback" of Python.

    A callback makes XLA copy arrays of a GPU to host memory and back. If the setting does not ask
    for the callback, a warning says so once.

    Raises:
      ConfigurationError: ``HERRING_JAX_IMPL`` is not "auto", "ffi" or "callback", or it is "ffi"
        and the handler cannot be used on this platform.
    """
    chosen: str = value_of(os.environ, "HERRING_JAX_IMPL")
    if chosen == "callback":
        return chosen
    backend = jax.default_backend()
    why = _obstacle(backend)
    if not why:
        return "ffi"
    if chosen == "ffi":
        raise ConfigurationError(f"HERRING_JAX_IMPL is ffi, which cannot be used here: {why}")
    _say(backend, why)
    return "callback"


@functools.cache
def _obstacle(backend: str) -> str:
    """Returns why the handler cannot be used on a platform of JAX; "": it can."""
    if backend == "cpu":
        return ""
    device = jax.local_devices()[0]
    version = str(getattr(device.client, "platform_version", ""))
    if backend not in ("gpu", "cuda") or "rocm" in version.lower():
        return f"there is no handler for {device.platform} devices"
    index = device.local_hardware_id or 0
    try:
        return str(described_gpus()["devices"][index]["refused"])
    except HerringError as error:
        return str(error)
    except IndexError:
        return f"the CUDA driver sees no GPU {index}"


@functools.cache
def _say(backend: str, why: str) -> None:
    _core.log_warning(
        f"herring.jax: XLA copies arrays of the {backend} to host memory for every call, and waits "
        f"for its result, one call after the other: {why}"
    )


# Handlers are registered once, because programs outlive jobs. Native code knows the current job.
for _platform, _handlers in (
    ("cpu", _core.jax.handlers()),
    ("CUDA", _core.jax.device_handlers()),
):
    for _target, _handler in zip((START, FINISH), _handlers):
        jax.ffi.register_ffi_target(_target, _handler, platform=_platform)
