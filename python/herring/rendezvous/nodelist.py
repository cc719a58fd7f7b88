"""Parses Slurm's notations: host lists (``n[01-03,7],login``) and task counts (``4(x2),3``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from herring.errors import ConfigurationError

__all__ = ["expand_hosts", "first_host", "tasks_on_node"]

MAXIMUM_HOSTS = 1 << 20


def expand_hosts(text: str, variable: str = "SLURM_JOB_NODELIST") -> list[str]:
    """Returns all hosts of a Slurm node list, in order.

    Args:
        text: For example ``gpu[001-003,007],rack[1-2],login``. Letters cannot be a range, so
            ``[a-b]`` is refused.
        variable: Where the list came from, for the message.

    Raises:
        ConfigurationError: `text` is not a node list, or names more than 2**20 hosts.
    """
    hosts: list[str] = []
    for host in _hosts(text, variable):
        hosts.append(host)
        if len(hosts) > MAXIMUM_HOSTS:
            raise _bad(text, variable)
    return hosts


def first_host(text: str, variable: str = "SLURM_JOB_NODELIST") -> str:
    """Returns the first host of a Slurm node list, without expanding the rest."""
    return next(_hosts(text, variable))


def tasks_on_node(text: str, node: int, variable: str = "SLURM_TASKS_PER_NODE") -> int | None:
    """Returns the number of tasks on the node with index `node`, from ``4(x2),3``.

    Returns:
        The number, or None if the list has no entry for this node.

    Raises:
        ConfigurationError: `text` is not such a list.
    """
    seen = 0
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", part.strip(), re.ASCII)
        if not match:
            raise ConfigurationError(
                f"{variable}={text} is not valid: allowed are counts such as 4(x2),3"
            )
        seen += int(match.group(2) or 1)
        if node < seen:
            return int(match.group(1))
    return None


def _bad(text: str, variable: str) -> ConfigurationError:
    return ConfigurationError(
        f"{variable}={text} is not valid: allowed are host names with ranges, such as "
        "node[01-03,7],login"
    )


def _hosts(text: str, variable: str) -> Iterator[str]:
    # Commas separate hosts except within brackets.
    names = re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", text)
    if not names or ",".join(names) != text:
        raise _bad(text, variable)
    for name in names:
        yield from _expand(name, text, variable)


def _expand(name: str, text: str, variable: str) -> Iterator[str]:
    before, bracket, rest = name.partition("[")
    if not bracket:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise _bad(text, variable)
        yield name
        return
    ranges, _, after = rest.partition("]")
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if not match:
            raise _bad(text, variable)
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise _bad(text, variable)
        for number in range(int(first), int(last) + 1):
            yield from _expand(f"{before}{number:0{len(first)}d}{after}", text, variable)
