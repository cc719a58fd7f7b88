"""Parses Slurm's notations: node lists (``n[01-03,7],login``) and task counts (``4(x2),3``)."""

from __future__ import annotations

import re

from herring.errors import ConfigurationError

_RANGE = r"\d{1,9}(?:-\d{1,9})?"
_HOST = rf"(?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\])+"
_HOSTS = re.compile(rf"({_HOST})(?:,{_HOST})*", re.ASCII)


def first_host(text: str, variable: str = "SLURM_JOB_NODELIST") -> str:
    """Returns the first host of a Slurm node list.

    Args:
        text: For example ``gpu[001-003,007],rack[1-2]-[3-4],login``. A range has numbers only.

    Raises:
        ConfigurationError: `text` is not a node list.
    """
    match = _HOSTS.fullmatch(text)
    if not match:
        raise ConfigurationError(
            f"{variable}={text} is not valid: allowed are host names with ranges, such as "
            "node[01-03,7],login"
        )
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", match[1])


def tasks_on_node(text: str, node: int, variable: str = "SLURM_TASKS_PER_NODE") -> int | None:
    """Returns the number of tasks on the node with index `node`, from a list such as ``4(x2),3``.

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
