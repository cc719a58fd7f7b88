"""Gathers the facts of one host: cores, versions, limits, buffers, its interfaces and its GPUs.

`herring doctor` and `herring check` report them. Nothing here takes long or imports a framework.
What cannot be found out is left out.
"""

from __future__ import annotations

import os
import platform
import resource
from importlib import metadata
from pathlib import Path
from typing import Any

from herring.base import cgroup
from herring.base.version import version
from herring.errors import ConfigurationError, HerringError
from herring.rendezvous.network import interfaces

_PACKAGES = ("torch", "numpy", "jax", "tensorflow")
_SYSCTLS = {
    "rmem_max": "net/core/rmem_max",
    "wmem_max": "net/core/wmem_max",
    "tcp_rmem": "net/ipv4/tcp_rmem",
    "tcp_wmem": "net/ipv4/tcp_wmem",
    "congestion_control": "net/ipv4/tcp_congestion_control",
    "mtu_probing": "net/ipv4/tcp_mtu_probing",
}
_COPIED_BYTES = 64 << 20
# Settings that a launcher or a host may set as it likes, and the secret.
_OWN = ("HERRING_INTERFACE", "HERRING_HOST_ID")


def gather(address: str) -> dict[str, Any]:
    """Examines this host.

    Returns:
        A dictionary that JSON can represent. Each group of facts has a key.
    """
    return {
        "versions": versions(),
        "cores": cores(),
        "numa": _numa(),
        "interface": _interface(address),
        "addresses": [each for one in interfaces() for each in one.addresses],
        "sysctl": sysctls(),
        "limits": limits(),
        "memory": memory(),
        "gpus": _gpus(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Herring, its protocol, Python, the kernel and frameworks."""
    from herring import _core

    found = {
        "herring": version(),
        "protocol": str(_core.PROTOCOL_VERSION),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)  # importing torch takes seconds
        except metadata.PackageNotFoundError:
            continue
    return found


def given_settings() -> tuple[dict[str, str], str, list[str]]:
    """Returns the settings of this process that must or should be the same on all ranks.

    Returns:
        Variables with their values, where these are not the defaults; why no job would start with
        them, or an empty text; and warnings about variables that are not settings.
    """
    from herring import _core

    try:
        rows = _core.settings()
        warnings = [str(warning) for warning in _core.setting_warnings()]
    except ConfigurationError as error:
        return {}, str(error), []
    found = {
        str(row["env"]): str(row["value"])
        for row in rows
        if row["scope"] != "launcher" and row["env"] not in _OWN and row["origin"] != "default"
    }
    return found, "", warnings


def processor() -> tuple[str, set[str]]:
    """Returns the processor's model, or its architecture, and the names of its features."""
    model, flags = platform.machine(), set()
    for line in text_of("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() in ("flags", "Features"):
            flags = set(value.split())
    return model, flags


def cores() -> dict[str, Any]:
    """Returns how many cores there are, which this process may use, and its groups' quota."""
    return {
        "all": os.cpu_count() or 1,
        "allowed": sorted(os.sched_getaffinity(0)),
        "quota": cgroup.cores(),
    }


def _numa() -> dict[str, list[int]]:
    """Returns the processors of each NUMA node."""
    nodes = Path("/sys/devices/system/node").glob("node[0-9]*")
    return {path.name[4:]: parse_cores(text_of(path / "cpulist")) for path in sorted(nodes)}


def parse_cores(text: str) -> list[int]:
    """Returns the numbers in a list such as ``0-3,8``."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.extend(range(int(first), int(last or first) + 1))
    return found


def _interface(address: str) -> dict[str, Any]:
    """Returns name, MTU, speed and NUMA node of the interface with an address."""
    name = next((one.name for one in interfaces() if address in one.addresses), "")
    if not name:
        return {}
    import psutil

    found: dict[str, Any] = {"name": name}
    about = psutil.net_if_stats().get(name)
    if about is not None:
        found["mtu"] = about.mtu
    # /sys may show the devices of another network namespace, as in some containers.
    folder = Path("/sys/class/net") / name
    links = psutil.net_if_addrs().get(name, ())
    if text_of(folder / "address").strip() in {each.address for each in links} - {""}:
        found["physical"] = (folder / "device").exists()
        if about is not None and found["physical"]:  # virtual devices make their speed up
            found["speed"] = about.speed * 1e6
        node = text_of(folder / "device" / "numa_node").strip()
        if node.isdigit():
            found["numa"] = node
    return found


def sysctls() -> dict[str, list[int] | str]:
    """Returns settings of the kernel's network: numbers, or a text."""
    found: dict[str, list[int] | str] = {}
    for name, path in _SYSCTLS.items():
        if words := text_of(Path("/proc/sys") / path).split():
            numbers = all(word.isdigit() for word in words)
            found[name] = [*map(int, words)] if numbers else " ".join(words)
    return found


def limits() -> dict[str, int]:
    """Returns limits of this process; -1 means that there is none."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "open_files": files[0],
        "open_files_hard": files[1],
        "locked_memory": locked[0],
        "locked_memory_hard": locked[1],
    }


def memory() -> dict[str, int]:
    """Returns the bytes of memory and of /dev/shm, and what the control groups allow."""
    import psutil

    found = {"total": psutil.virtual_memory().total, "available": psutil.virtual_memory().available}
    if (limit := cgroup.memory_limit()) is not None:
        found["limit"] = limit
    try:
        shared = os.statvfs("/dev/shm")
        found["shm"] = shared.f_blocks * shared.f_frsize
        found["shm_free"] = shared.f_bavail * shared.f_frsize
    except OSError:
        pass
    return found


def gpus() -> tuple[dict[str, Any], str]:
    """Returns the result of `described_gpus`, or an empty one and why this process sees none."""
    try:
        from herring.arrays.devices import described_gpus

        return described_gpus(), ""
    except ImportError:
        return {}, "not known without the extension module"
    except HerringError as error:
        return {}, str(error)


def copies(index: int) -> dict[str, Any]:
    """Measures how many bytes per second a GPU copies out and in; HerringError if that fails."""
    from herring import _core

    return dict(_core.measure_copies(index, _COPIED_BYTES))


def _gpus() -> dict[str, Any]:
    """Returns the driver, and name and copy rates of each GPU; empty if there are none."""
    described, _ = gpus()
    devices = []
    for index, each in enumerate(described.get("devices", ())):
        device = {"name": each["name"], "refused": str(each["refused"])}
        try:
            rates = copies(index)
            device.update({key: rates[key] for key in ("out", "in", "both")})
            device["pinned"] = bool(rates["pinned"])
        except HerringError as error:
            device["error"] = str(error)
        devices.append(device)
    return {"driver": str(described["driver"]), "devices": devices} if devices else {}


def text_of(path: str | Path) -> str:
    """Returns the content of a file; an empty text if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
