"""Horovod's environment variables: the setting that replaces each, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from herring.errors import ConfigurationError
from herring.rendezvous.settings import named

TIMELINE = "HOROVOD_TIMELINE"
_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
}


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e15:
        raise ValueError
    return value


def _is_on(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")


def _seconds(text: str) -> str:
    value = _number(text)
    return f"{value:g}" if value else ""


def _bytes(text: str) -> str:
    value = _number(text)
    return f"{value:.0f}" if value else ""


#: The setting, the conversion of its value (empty: Herring's default), and what is allowed.
_TAKEN: dict[str, tuple[str, Callable[[str], str], str]] = {
    "HOROVOD_FUSION_THRESHOLD": ("buffer_bytes", _bytes, "bytes; 0: Herring chooses"),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("warn_after", _seconds, "seconds"),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("timeout", _seconds, "seconds; 0: Herring's default"),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": ("connect_timeout", _seconds, "seconds"),
    "HOROVOD_GLOO_IFACE": ("interface", str.strip, "the name of an interface"),
    "HOROVOD_LOG_LEVEL": (
        "log_level",
        lambda text: _LEVELS[text.strip().lower()],
        f"one of {', '.join(_LEVELS)}",
    ),
    "HOROVOD_STALL_CHECK_DISABLE": (
        "warn_after",
        lambda text: f"{named('warn_after').maximum:g}" if _is_on(text) else "",
        "0 or 1",
    ),
}

#: Variables without a counterpart, and why.
WITHOUT = {
    "HOROVOD_CYCLE_TIME": "nothing is negotiated in cycles",
    "HOROVOD_CACHE_CAPACITY": "nothing is negotiated, so no answers are kept",
    "HOROVOD_AUTOTUNE": "Herring finds out buffers and credit by itself",
    "HOROVOD_AUTOTUNE_LOG": "Herring finds out buffers and credit by itself",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "gradients are always added within a node first",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "workers of a node always share memory",
    "HOROVOD_TORUS_ALLREDUCE": "there is no torus algorithm",
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL is not used",
    "HOROVOD_THREAD_AFFINITY": "threads are not pinned",
    "HOROVOD_TIMELINE_MARK_CYCLES": "there are no cycles to mark",
    "HOROVOD_LOG_TIMESTAMP": "log lines always have times",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is not used",
    "HOROVOD_CPU_OPERATIONS": "the transport is Herring's own",
    "HOROVOD_CONTROLLER": "the transport is Herring's own",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "gradients are copied once, into the arena",
    "HOROVOD_DISABLE_GROUP_FUSION": "gradients share fusion buffers anyway",
}

#: Variables that `herring run` passes on to other hosts.
TRAVELLING = frozenset([*_TAKEN, *WITHOUT, TIMELINE])


def setting_of(variable: str, text: str) -> tuple[str, str]:
    """Returns the setting that corresponds to one of Horovod's variables.

    Returns:
        Name and value of the setting; an empty value stands for Herring's default.

    Raises:
        ConfigurationError: The variable cannot have this value.
    """
    name, read, allowed = _TAKEN[variable]
    try:
        return name, read(text)
    except (KeyError, ValueError):
        raise ConfigurationError(f"{variable}={text} is not valid: allowed is {allowed}") from None


def read_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Reads Horovod's variables from the environment.

    Args:
        environ: Usually ``os.environ``. Herring's own variables take precedence.

    Returns:
        Settings for `herring.init`, and a line for each variable that has no meaning here.

    Raises:
        ConfigurationError: A variable has a value that is not allowed.
    """
    settings = {}
    for variable in _TAKEN:
        text = environ.get(variable, "")
        if not text.strip():
            continue
        name, value = setting_of(variable, text)
        if value and not environ.get(f"HERRING_{name.upper()}", "").strip():
            settings[name] = value
    lines = [
        f"{variable}={environ[variable]} has no meaning with Herring: {why}"
        for variable, why in WITHOUT.items()
        if _is_on(environ.get(variable, ""))
    ]
    return settings, lines
