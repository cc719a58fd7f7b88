"""The hosts of `herring run -H host1:4,host2:4`, and the ranks and servers that they run."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from herring.base.units import counted
from herring.errors import ConfigurationError
from herring.rendezvous.network import is_local_address
from herring.rendezvous.settings import named

_MOST_ON_ONE_MACHINE = 1024  # more processes are a mistake, and would stall the machine
# Names that ssh accepts, but nothing that it could take for an option.
_NAME = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?"
    r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]+(?:%\w+)?)"
)


@dataclass(frozen=True)
class Host:
    """A host of the list."""

    name: str  # a name or an address, perhaps with ``user@`` before it, in the form that ssh takes
    slots: int  # the number of workers that the host can run
    local: bool  # whether the host is this machine, where no ssh is needed


THIS_MACHINE = Host("localhost", 0, True)


@dataclass(frozen=True)
class Layout:
    """Where the processes of a job run."""

    # Each host that has workers, in the order of the list, with their number.
    workers: tuple[tuple[Host, int], ...]
    servers: tuple[Host, ...]  # the host of each dedicated server

    @property
    def remote(self) -> tuple[Host, ...]:
        """The hosts other than this machine, without duplicates, in the order of the list."""
        found = dict.fromkeys([host for host, _ in self.workers] + list(self.servers))
        return tuple(host for host in found if not host.local)

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(count for _, count in self.workers)


def read_hosts(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """Reads the hosts of -H or --hostfile; returns none if neither is given.

    Args:
        hosts: For example ``host1:4,user@host2:4,[fd00::3]:4``. A host without a number has 1 slot.
        hostfile: A file with a line ``host1 slots=4`` or ``host1:4`` for each host. ``#`` begins a
            comment; text after the slots is ignored.

    Raises:
        ConfigurationError: Both are given, the file cannot be read, an item is not a host, or a
            host appears in two places.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigurationError("--hosts and --hostfile: give only one of them")
    if hosts is not None:
        where = "-H"
        items = list(parse_hosts(filter(None, map(str.strip, hosts.split(","))), where))
    elif hostfile is not None:
        where = f"--hostfile {hostfile}"
        items = list(_lines(hostfile, where))
    else:
        return ()
    if not items:
        raise ConfigurationError(f"{where}: there is no host in it; write host1:4,host2:4")
    return _merged(items, where)


def parse_hosts(items: Iterable[str], where: str, slots: int = 1) -> tuple[Host, ...]:
    """Reads items such as ``host1:4``, ``user@host2`` and ``[fd00::3]:4``; merges those of a host.

    Args:
        where: What they come from, for messages.

    Raises:
        ConfigurationError: An item is not a host, or a host appears in two places.
    """
    return _merged([_item(item, where, slots) for item in items], where)


def lay_out(hosts: tuple[Host, ...], workers: int | None, servers: int) -> Layout:
    """Places ranks on hosts in the order of the list, and servers on the remaining hosts.

    Args:
        hosts: The result of `read_hosts`; an empty one stands for this machine, without a limit.
        workers: The number of -n, or None for all slots (1 without hosts).
        servers: Number of dedicated servers. Hosts without a worker, which exist if -n is smaller
            than the number of slots, take servers in turn; if there are none, all hosts do.

    Raises:
        ConfigurationError: A number is out of range, or there are fewer slots than workers.
    """
    slots = sum(host.slots for host in hosts)
    if workers is None:
        workers = slots if hosts else 1
    for option, value, row in (
        ("-n", workers, named("size")),
        ("--servers", servers, named("servers")),
    ):
        most = row.maximum if hosts else _MOST_ON_ONE_MACHINE
        require_range(option, value, int(row.minimum), int(most))
    if not hosts:
        return Layout(((THIS_MACHINE, workers),), (THIS_MACHINE,) * servers)
    if workers > slots:
        raise ConfigurationError(
            f"-n {workers}: the hosts have only {counted(slots, 'slot')}; add slots"
        )
    placed = []
    left = workers
    for host in hosts:
        count = min(host.slots, left)
        left -= count
        if count:
            placed.append((host, count))
    free = hosts[len(placed) :] or hosts
    return Layout(tuple(placed), tuple(free[index % len(free)] for index in range(servers)))


def require_range(name: str, value: int, least: int, most: int) -> None:
    """Raises ConfigurationError if the value of an option is not from `least` to `most`."""
    if not least <= value <= most:
        raise ConfigurationError(
            f"{name} {value} is not valid: allowed is an integer from {least} to {most}"
        )


def _item(text: str, where: str, slots: int = 1) -> Host:
    match = re.fullmatch(r"((?:[^@:\[\]]+@)?\[[^\[\]]+\]|[^:]+)(?::([^:]*))?", text)
    if match is None:
        raise _bad(text, where)
    given = str(slots) if match.group(2) is None else match.group(2)
    return _host(_without_brackets(match.group(1)), given, where)


def _without_brackets(name: str) -> str:
    """Returns ``USER@fd00::3`` for ``USER@[fd00::3]``, and any other name as it is."""
    match = re.fullmatch(r"([^@\[\]]+@)?\[([^\[\]]+)\]", name)
    return name if match is None else f"{match.group(1) or ''}{match.group(2)}"


def _lines(path: Path, where: str) -> Iterable[Host]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{where}: {reason}") from None
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        match = re.fullmatch(r"(\S+)\s+slots\s*=\s*(\S*)(?:\s+.*)?", line)
        if match:
            yield _host(_without_brackets(match.group(1)), match.group(2), where)
        elif line:
            yield _item(line, where)


def _host(name: str, slots: str | None, where: str) -> Host:
    if not _NAME.fullmatch(name):
        raise _bad(name, where)
    if slots is None:
        slots = "1"
    if not re.fullmatch(r"0*[1-9]\d{0,5}", slots, re.ASCII):
        raise ConfigurationError(
            f"{where}: {name} has {slots!r} slots; it must be an integer, 1 or more"
        )
    return Host(name, int(slots), _is_this_machine(name))


def _bad(text: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {text!r} is not a host; allowed is HOST, HOST:SLOTS, USER@HOST:SLOTS, "
        "[IPV6]:SLOTS or USER@[IPV6]:SLOTS"
    )


def _merged(items: list[Host], where: str) -> tuple[Host, ...]:
    """Merges adjacent items of one host, because the ranks of a host must be consecutive."""
    found: list[Host] = []
    for item in items:
        last = found[-1] if found else None
        if last is not None and (last.name == item.name or (last.local and item.local)):
            found[-1] = replace(last, slots=last.slots + item.slots)
        elif any(host.name == item.name or (host.local and item.local) for host in found):
            raise ConfigurationError(
                f"{where}: {item.name} appears in two places; name it once, with all of its slots, "
                "because the ranks of a host are consecutive"
            )
        else:
            found.append(item)
    return tuple(found)


@functools.cache
def _is_this_machine(name: str) -> bool:
    if "@" in name:  # perhaps another user
        return False
    own = socket.gethostname()
    if name in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0], socket.getfqdn()):
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:  # perhaps a name that only ssh's configuration knows
        return False
    return all(is_local_address(str(address[0])) for *_, address in found)
