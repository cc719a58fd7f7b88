"""Judges what hosts and ranks say of themselves: versions, settings, cores, limits, GPUs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from herring.base.units import listed, ranks_text, show_size
from herring.doctor.findings import Finding, times
from herring.doctor.records import Examination, Host, Rank
from herring.rendezvous.settings import setting

_Key = TypeVar("_Key")
_FEW_CORES = 0.75  # of the typical number of cores of a rank
_FILES_BESIDE = 128  # descriptors that Python, a framework and data loaders use
_ENOUGH_FILES = 1024
_SMALL_SHM = 64 << 20  # what Docker gives
_SLOW_COPIES = 0.6
_QUIET = ("HERRING_LOG_LEVEL", "HERRING_WARN_AFTER")  # settings that may differ


def judge(about: Examination) -> Iterator[Finding]:
    """Yields findings on hosts and ranks."""
    known = [host for host in about.hosts if host.facts]
    yield from _versions(known)
    yield from _settings(about)
    yield from _cores(known)
    yield from _open_files(about, known)
    yield from _memory(known)
    yield from _nodes(known)
    yield from _gpus(known)


def most_common(values: Mapping[_Key, Any]) -> Any:
    """Returns the value that most have; of values that are equally common, the first one."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(value for value in values.values() if counts[value] == most)


def usable_cores(host: Host) -> float:
    """Returns the number of cores that the ranks of a host may use together."""
    cores: set[int] = set().union(*(rank.cores for rank in host.ranks))
    quota = host.facts.get("cores", {}).get("quota")
    return min(float(len(cores)), quota) if quota is not None else float(len(cores))


def _odd(hosts: Iterable[Host], values: Mapping[str, Any]) -> Iterator[tuple[Host, Any, Any]]:
    """Yields hosts whose value differs from the most common one, with both values."""
    if values:
        usual = most_common(values)
        for host in hosts:
            if host.name in values and values[host.name] != usual:
                yield host, values[host.name], usual


# What should be the same on all hosts, how bad a difference is, and why.
_MODELS = "Ranks of different versions may compute different models."
_VERSIONS = (
    ("protocol", "Herring's protocol", "error", "Processes of two protocols refuse each other."),
    ("herring", "Herring", "warning", "Two versions in one job are not tested together."),
    ("python", "Python", "warning", "Objects that ranks send each other are pickled."),
    ("torch", "PyTorch", "warning", _MODELS),
    ("jax", "JAX", "warning", _MODELS),
    ("tensorflow", "TensorFlow", "warning", "Ranks may compute different models."),
    ("numpy", "NumPy", "note", "Random numbers and file formats may differ."),
    ("machine", "the architecture", "note", "Compiled packages differ between architectures."),
)


def _versions(hosts: Sequence[Host]) -> Iterator[Finding]:
    for name, what, severity, helps in _VERSIONS:
        values = {host.name: _version(host, name) for host in hosts}
        for host, own, usual in _odd(hosts, values):
            yield Finding(
                severity,
                host.name,
                f"The host has {what} {own or '(not installed)'}, and the others have "
                f"{usual or 'none'}.",
                f"Install the same version of {what} on all hosts."
                if name != "machine"
                else "Use hosts of one architecture.",
                helps,
                factor=800.0 if severity == "error" else 1.0,
            )


def _version(host: Host, name: str) -> str:
    found = str(host.facts.get("versions", {}).get(name, ""))
    # Pickles do not depend on Python's last number.
    return ".".join(found.split(".")[:2]) if name == "python" else found


def _settings(about: Examination) -> Iterator[Finding]:
    ranks = [(host, rank) for host in about.hosts for rank in host.ranks]
    for host, rank in ranks:
        if rank.problem:
            yield Finding(
                "error",
                host.name,
                f"No job starts with the settings of rank {rank.number}: {rank.problem}.",
                "Correct the variable, or unset it.",
                factor=800.0,
            )
    for warning in dict.fromkeys(each for _, rank in ranks for each in rank.warnings):
        having = [
            host.name for host in about.hosts if any(warning in r.warnings for r in host.ranks)
        ]
        subject = "job" if len(having) == len(about.hosts) else listed(having)
        yield Finding("note", subject, f"A variable has no effect: {warning}.")
    for variable in sorted({name for _, rank in ranks for name in rank.settings}):
        yield from _setting(variable, about.hosts, [rank for _, rank in ranks])


def _setting(variable: str, hosts: Sequence[Host], ranks: Sequence[Rank]) -> Iterator[Finding]:
    values = {rank.number: rank.settings.get(variable) for rank in ranks if not rank.problem}
    if not values:
        return
    usual = most_common(values)
    advice = f"Set {variable} to the same value for all ranks."
    try:
        common = setting(variable).scope == "job"
        helps = "Rank 0's value counts for all ranks." if common else "Each rank uses its own."
    except KeyError:  # the rank that has it has a newer Herring
        helps = f"Rank 0's version of Herring does not know {variable}."
        advice = "Install the same version of Herring on all hosts."
    if variable == "HERRING_PORTS":
        helps = "A firewall that lets one range in blocks the ports of the other one."
    for host in hosts:
        odd = [rank.number for rank in host.ranks if values.get(rank.number, usual) != usual]
        if not odd:
            continue
        who = "all ranks of the host" if len(odd) == len(host.ranks) else ranks_text(odd)
        own, others = _shown(values[odd[0]]), _shown(usual)
        yield Finding(
            "note" if variable in _QUIET else "warning",
            host.name,
            f"On {who} {variable} is {own}, and on the other ranks it is {others}.",
            advice,
            helps,
        )


def _shown(value: str | None) -> str:
    return "not set" if value is None else value


def _cores(hosts: Sequence[Host]) -> Iterator[Finding]:
    if not hosts:
        return
    shares = {host.name: usable_cores(host) / len(host.ranks) for host in hosts}
    typical = statistics.median_high(list(shares.values()))
    for host in hosts:
        usable, share, count = usable_cores(host), shares[host.name], len(host.ranks)
        if len(hosts) > 1 and share < _FEW_CORES * typical:
            factor = typical / share
            yield Finding(
                "warning",
                host.name,
                f"{_why_few(host, usable)}; ranks of the other hosts have {typical:.3g} each.",
                "Look at taskset, at the launcher's binding (mpirun --bind-to, srun "
                "--cpus-per-task), at the limits of the container, and at the number of ranks.",
                f"What processors compute takes up to {times(factor)} as long there, and all ranks "
                "wait for it.",
                factor,
            )
        elif usable < count:
            yield Finding(
                "warning",
                host.name,
                f"The {count} ranks of the host share {usable:.3g} "
                f"core{'s' if usable != 1 else ''}.",
                "Start fewer ranks there, or look at the launcher's binding (mpirun --bind-to).",
                "Ranks that share a core take turns.",
                count / max(usable, 0.01),
            )


def _why_few(host: Host, usable: float) -> str:
    """Says how many cores the ranks of a host have, and what limits them."""
    about, count = host.facts.get("cores", {}), len(host.ranks)
    installed = about.get("all", usable)
    if usable >= installed:
        return f"The host has {count} ranks on {usable:.3g} cores"
    why = "its control group" if about.get("quota") == usable else "its CPU affinity"
    return (
        f"Each rank of the host has {usable / count:.3g} of its {installed} cores because of {why}"
    )


def _open_files(about: Examination, hosts: Sequence[Host]) -> Iterator[Finding]:
    flows = max((_number(rank.settings.get("HERRING_FLOWS")) for h in hosts for rank in h.ranks),
                default=1)  # fmt: skip
    needed = about.size * flows + _FILES_BESIDE
    for host in hosts:
        limits = host.facts.get("limits", {})
        hard = limits.get("open_files_hard", -1)
        if hard < 0 or hard >= max(needed, _ENOUGH_FILES):
            continue
        wrong = hard < needed
        yield Finding(
            "error" if wrong else "warning",
            host.name,
            f"A process may open {hard} files (the hard limit); this job needs about {needed}, and "
            "data loaders need more.",
            "Raise the limit: 'nofile' in /etc/security/limits.conf, LimitNOFILE of the service, "
            "or --ulimit nofile of the container.",
            "A process that has no descriptor left cannot join the job or read its data.",
            factor=700.0 if wrong else 1.0,
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 1


def _memory(hosts: Sequence[Host]) -> Iterator[Finding]:
    small = [h.name for h in hosts if 0 < h.facts.get("memory", {}).get("shm", 0) <= _SMALL_SHM]
    if small:
        yield Finding(
            "note",
            "job" if len(small) == len(hosts) else listed(small),
            f"/dev/shm has {show_size(_SMALL_SHM)} or less.",
            "Start the container with --shm-size or --ipc=host.",
            "Herring does not need it, but data loaders of PyTorch fail when it is full.",
        )


def _nodes(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Yields findings on ranks that are kept away from the NUMA node of the interface."""
    for host in hosts:
        nodes = host.facts.get("numa", {})
        node = host.facts.get("interface", {}).get("numa")
        near = set(nodes.get(node, ()))
        allowed = set().union(*(rank.cores for rank in host.ranks))
        if len(nodes) > 1 and near and not near & allowed:
            yield Finding(
                "note",
                host.name,
                f"The interface {host.facts['interface']['name']} is at NUMA node {node}, and the "
                "ranks may only use cores of other nodes.",
                f"Let a rank of the host use cores of NUMA node {node} (numactl, or the launcher's "
                "binding).",
                "Every packet crosses the link between the sockets.",
            )


def _gpus(hosts: Sequence[Host]) -> Iterator[Finding]:
    if not any(host.facts.get("gpus") for host in hosts):
        return
    counts = {host.name: len(host.facts.get("gpus", {}).get("devices", ())) for host in hosts}
    for host, own, usual in _odd(hosts, counts):
        yield Finding(
            "warning",
            host.name,
            f"The host has {own} GPUs, and the others have {usual}.",
            "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES there.",
            "Ranks without a GPU compute on processors.",
        )
    drivers = {h.name: h.facts["gpus"]["driver"] for h in hosts if h.facts.get("gpus")}
    for host, own, usual in _odd(hosts, drivers):
        yield Finding("note", host.name, f"The GPU driver is {own}, and on the others {usual}.")
    yield from _copies(hosts)


def _copies(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Yields findings on GPUs that copy slowly to and from host memory, or not at all."""
    devices = [
        (host, index, device)
        for host in hosts
        for index, device in enumerate(host.facts.get("gpus", {}).get("devices", ()))
    ]
    for host, index, device in devices:
        if "error" in device:
            yield Finding(
                "error",
                host.name,
                f"GPU {index} cannot copy to host memory: {device['error']}.",
                "See the system's log (dmesg).",
                factor=700.0,
            )
        elif device["refused"]:
            yield Finding(
                "warning", host.name, f"{device['refused']}.",
                "Use processors or other GPUs for the arrays that are averaged.",
                "Herring cannot use arrays on this GPU.",
            )  # fmt: skip
    unpinned = dict.fromkeys(h.name for h, _, device in devices if device.get("pinned") is False)
    if unpinned:
        yield Finding(
            "warning",
            listed(list(unpinned)),
            "The driver cannot pin memory.",
            "Set 'ulimit -l unlimited', in containers --ulimit memlock=-1.",
            "Copies to and from GPUs are faster in pinned memory.",
        )
    for way, words in (("out", "to host memory"), ("in", "from host memory")):
        rates = [device[way] for _, _, device in devices if way in device]
        typical = statistics.median(rates) if len(rates) > 1 else 0.0
        for host, index, device in devices:
            if way in device and device[way] < _SLOW_COPIES * typical:
                yield Finding(
                    "warning",
                    host.name,
                    f"GPU {index} copies {device[way] / 1e9:.1f} GB/s {words}, and the others copy "
                    f"{typical / 1e9:.1f} GB/s.",
                    "Look at the width of its PCIe link (nvidia-smi -q), and at what else uses it.",
                    f"Copies take {typical / device[way]:.2g} times as long there.",
                    typical / device[way],
                )
