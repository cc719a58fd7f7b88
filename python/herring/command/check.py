"""`herring check`: reports what this machine has, and tries a small all-reduce."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import re
import resource
import ssl
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from herring.base.parts import install_command
from herring.base.provenance import provenance
from herring.base.units import counted, show_size
from herring.base.version import version
from herring.command.lines import Line, last_lines, run_job
from herring.command.tune import tune
from herring.doctor import facts
from herring.errors import ConfigurationError, HerringError
from herring.launch.commands import module_command
from herring.rendezvous.network import interfaces, own_address
from herring.rendezvous.settings import value_of
from herring.terminal.printing import print_lines

# A server needs a descriptor per node and flow, a worker one per server; this leaves room.
_ENOUGH_DESCRIPTORS = 1024
_TRIAL_SECONDS = 60
_SENT_BYTES = 256 << 20
_FLAGS = ("avx2", "f16c", "avx512f", "avx512bw", "avx512_bf16", "asimd", "sve")


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring check`."""
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--no-run", action="store_true", help="do not run an all-reduce")
    command.add_argument(
        "--tune",
        action="store_true",
        help="also measure each way of adding gradients on this machine's GPUs "
        "(HERRING_NODE_STAGE); takes a minute and needs PyTorch",
    )


def handle(options: argparse.Namespace) -> int:
    """Prints the report as a table or as JSON; returns 0, or 1 if a line reports a failure."""
    found = findings()
    document: dict[str, Any] = {}
    if not options.json:
        _print(found)
    if not options.no_run:
        found += _shown(trials(), options)
    if options.tune:
        tuned, document["tune"] = tune(*facts.gpus())
        found += _shown(tuned, options)
    if options.json:
        document = {
            "findings": [dataclasses.asdict(finding) for finding in found],
            **document,
            "provenance": provenance({"run": not options.no_run, "tune": options.tune}),
        }
        json.dump(document, sys.stdout, indent=2)
        print()
    return int(any(finding.verdict == "fail" for finding in found))


def _shown(found: list[Line], options: argparse.Namespace) -> list[Line]:
    """Prints the lines unless the report is JSON, and returns them."""
    if not options.json:
        _print(found)
    return found


def findings() -> list[Line]:
    """Examines the machine without starting anything."""
    return [
        Line("herring", version()),
        Line("python", f"{platform.python_version()} ({sys.executable})"),
        _core(),
        *_settings(),
        *_cpu(),
        *_memory(),
        *_devices(),
        *_network(),
        *_limits(),
        Line("openssl", ssl.OPENSSL_VERSION),
        _torch(),
    ]


def trials() -> list[Line]:
    """Tries copies to and from GPUs, encryption, and all-reduces in a node and between nodes."""
    return [
        *_copies(),
        _encryption(),
        _trial("all-reduce, one node of 2", "-n", "2"),
        _trial(
            "all-reduce, 2 nodes and a server", "-n", "2", "--nodes", "2", "--servers", "1"
        ),
    ]  # fmt: skip


def _trial(name: str, *options: str) -> Line:
    start = time.monotonic()
    done = run_job(options, module_command("herring.command.trial"), _TRIAL_SECONDS)
    seconds = time.monotonic() - start
    if done.returncode == 0:
        return Line(name, f"right to the bit ({seconds:.1f} s with start and end)")
    return Line(name, f"exit status {done.returncode}", "fail", last_lines(done.stdout))


def _encryption() -> Line:
    """Measures one loopback connection with and without TLS."""
    name = "encryption"
    try:
        from herring import _core

        _core.encryption_cost("off", _SENT_BYTES // 8)  # the first bytes take longer
        costs = {tls: _core.encryption_cost(tls, _SENT_BYTES) for tls in ("psk", "off")}
    except (ImportError, HerringError) as error:
        return Line(name, str(error), "note", "jobs with HERRING_TLS=off work")
    texts = [
        f"HERRING_TLS={tls}: {8 * rate / 1e9:.1f} Gbit/s, {cpu:.2f} CPU seconds per GB"
        for tls, (rate, cpu) in costs.items()
    ]
    return Line(name, f"one connection over loopback, {'; '.join(texts)} (both sides)")


def _core() -> Line:
    try:
        from herring import _core
    except ImportError as error:
        advice = "install the package: 'pip install .' in its source tree, or 'make build'"
        return Line("extension module", str(error), "fail", advice)
    level: Callable[[], str] | None = getattr(_core, "simd_level", None)
    return Line("extension module", f"SIMD level {level()}" if level else "loaded")


def _settings() -> list[Line]:
    """Reports variables that no job on this machine would start with, and misspelt ones."""
    try:
        from herring import _core

        warnings = _core.setting_warnings()
    except ImportError:
        return []  # there is a line about it already
    except ConfigurationError as error:
        return [Line("settings", str(error), "fail", "correct it, or unset the variable")]
    return [Line("settings", warning, "note") for warning in warnings]


def _cpu() -> list[Line]:
    model, flags = facts.processor()
    has = " ".join(flag for flag in _FLAGS if flag in flags) or "none that matter here"
    cores = facts.cores()
    usable = f"{len(cores['allowed'])} usable of {cores['all']}"
    if cores["quota"] is not None:
        usable += f", limited to {cores['quota']:g} by the control group"
    return [Line("cpu", model), Line("cpu features", has), Line("cores", usable)]


def _memory() -> list[Line]:
    memory = facts.memory()
    text = f"{show_size(memory['available'])} available of {show_size(memory['total'])}"
    if "limit" in memory:
        text += f", limited to {show_size(memory['limit'])} by the control group"
    found = [Line("memory", text)]
    if "shm" in memory:
        text = f"{show_size(memory['shm_free'])} free of {show_size(memory['shm'])}"
        found.append(Line("/dev/shm", text))
    else:
        found.append(Line("/dev/shm", "missing", "note", "data loaders may need it"))
    found.append(_huge_pages())
    return found


def _huge_pages() -> Line:
    """Reports whether servers, and workers alone on a node, get the huge pages they ask for."""
    folder = "/sys/kernel/mm/transparent_hugepage"
    modes = []
    for name in ("enabled", "shmem_enabled"):
        chosen = re.search(r"\[(\w+)\]", facts.text_of(f"{folder}/{name}"))
        modes.append(chosen[1] if chosen else "not in this kernel")
    text = f"private memory: {modes[0]}, shared memory: {modes[1]}"
    if modes[0] == "never":
        advice = f"'echo madvise > {folder}/enabled' saves servers a few percent of their time"
        return Line("huge pages", text, "note", advice)
    return Line("huge pages", text)


def _devices() -> list[Line]:
    described, why = facts.gpus()
    if not described:
        return [Line("GPUs", f"none ({why})")]
    devices = described["devices"]
    found = [Line("GPU driver", f"{described['driver']}, {counted(len(devices), 'GPU')}")]
    for index, each in enumerate(devices):
        major, minor = each["capability"]
        node = each["numa_node"]
        value = (
            f"{each['name']}, {show_size(each['memory'])}, compute capability {major}.{minor}, at "
            f"{each['bus']}, " + (f"NUMA node {node}" if node >= 0 else "NUMA node not known")
        )
        if each["refused"]:
            advice = f"Herring cannot use arrays on this GPU: {each['refused']}"
            found.append(Line(f"GPU {index}", value, "note", advice))
            continue
        waits = "memory operations on streams"
        if not each["stream_memory"]:
            waits = f"kernels that wait (no {waits})"
        found.append(Line(f"GPU {index}", f"{value}, {waits}"))
    if described["compiler"].startswith("none"):
        advice = "pip install nvidia-cuda-nvrtc; without it, processors add instead of GPUs"
        found.append(Line("GPU compiler", described["compiler"], "note", advice))
    else:
        found.append(Line("GPU compiler", described["compiler"]))
    if len(devices) > 1:
        pairs = [f"{i} -> {peer}" for i, each in enumerate(devices) for peer in each["peers"]]
        all_of_them = len(pairs) == len(devices) * (len(devices) - 1)
        text = "between all GPUs" if all_of_them else ", ".join(pairs) or "none"
        found.append(Line("peer access", text))
    return found


def _copies() -> list[Line]:
    """Measures how fast GPUs copy to host memory and back."""
    described, _ = facts.gpus()
    found = []
    for index in range(len(described.get("devices", ()))):
        name = f"GPU {index}, copies"
        try:
            rates = facts.copies(index)
        except HerringError as error:
            found.append(Line(name, str(error), "fail", "see the system's log (dmesg)"))
            continue
        value = ", ".join(
            f"{what} {rates[key] / 1e9:.1f} GB/s"
            for what, key in (("out", "out"), ("in", "in"), ("both at once", "both"))
        )
        if rates["pinned"]:
            found.append(Line(name, f"{value}, in pinned memory"))
        else:
            advice = "the driver cannot pin memory: set 'ulimit -l unlimited', in containers "
            value += f", in memory that is not pinned ({rates['refused']})"
            found.append(Line(name, value, "note", f"{advice}--ulimit memlock=-1"))
    return found


def _network() -> list[Line]:
    import psutil

    found = []
    reachable = False
    links = psutil.net_if_stats()
    for each in interfaces():
        if not each.addresses or each.name not in links:
            continue
        link = links[each.name]
        state = "up" if each.up else "down"
        speed = f", {link.speed} Mbit/s" if link.speed else ""
        value = f"{', '.join(each.addresses)} ({state}, MTU {link.mtu}{speed})"
        reachable = reachable or (each.up and each.name != "lo")
        found.append(Line(f"interface {each.name}", value))
    if not reachable:
        advice = "jobs on this machine work; jobs on several hosts need an interface"
        found.append(Line("interfaces", "only loopback", "note", advice))
    found.append(_proxies())
    match facts.sysctls():
        case {"congestion_control": control, "tcp_rmem": [_, _, int(most)]}:
            value = f"{control}, receive buffer up to {show_size(most)}"
            found.append(Line("tcp", value))
    return found


def _proxies() -> Line:
    """Reports how many threads a server on this machine has by default, and why."""
    name = "proxies of a server"
    try:
        from herring import _core

        address = own_address(interface=value_of(os.environ, "HERRING_INTERFACE"))
        cores, rate, proxies = _core.server_proxies(address)
    except (ImportError, ConfigurationError) as error:
        return Line(name, str(error), "note", "no job can run here before this is corrected")
    link = f"a link of {rate / 1e9:g} Gbit/s" if rate else "a link of unknown rate"
    nodes = ", in jobs of as many nodes" if proxies > 1 else ""
    return Line(name, f"{proxies}{nodes} ({link} at {address}, {counted(cores, 'core')})")


def _limits() -> list[Line]:
    limits = facts.limits()
    soft, hard = limits["open_files"], limits["open_files_hard"]
    verdict, advice = "ok", ""
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_DESCRIPTORS:
        enough = max(hard, _ENOUGH_DESCRIPTORS)
        verdict, advice = "note", f"large jobs need more: 'ulimit -n {enough}'"
        if 0 <= hard < _ENOUGH_DESCRIPTORS:
            advice = (
                f"large jobs need more than the hard limit: raise it to {_ENOUGH_DESCRIPTORS} with "
                "'nofile' in /etc/security/limits.conf, LimitNOFILE of the service, or --ulimit "
                "nofile of the container"
            )
    found = [Line("open files", f"{_limit(soft)} (hard {_limit(hard)})", verdict, advice)]
    soft, hard = limits["locked_memory"], limits["locked_memory_hard"]
    found.append(
        Line("locked memory", f"{_limit(soft, show_size)} (hard {_limit(hard, show_size)})")
    )
    return found


def _torch() -> Line:
    # Importing torch takes seconds; its version can be found without.
    if importlib.util.find_spec("torch") is None:
        advice = f"only herring.torch needs it: {install_command('torch')}"
        return Line("torch", "not installed", "note", advice)
    try:
        return Line("torch", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Line("torch", "present")


def _limit(value: int, show: Callable[[int], str] = str) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else show(value)


def _print(found: list[Line]) -> None:
    style = {"ok": "green", "note": "yellow", "fail": "bold red"}
    for one in found:
        head = ((f"{one.verdict:5}", style[one.verdict]), (f"{one.name:34}", "bold"))
        print_lines([(*head, (one.value, ""))])
        print_lines([(f"{'':5}{advice}", "dim")] for advice in one.advice.splitlines())
