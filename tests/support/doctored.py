"""Starts `herring doctor` on emulated hosts with names of their own, and reads its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herring_lab.emulate import Cluster
from herring_lab.emulate.environment import Meeting, worker_environment, write_secret

__all__ = ["LIMIT", "doctor", "names_of", "serious"]

LIMIT = 600.0
_PORT = 29400
# Each host has a name and a file of names of its own, as machines have.
_SCRIPT = """
mount --bind "$1" /etc/hosts
hostname "$2"
shift 2
{before}
exec {python} -m herring.command.cli doctor --json "$@"
"""


def names_of(cluster: Cluster) -> dict[str, str]:
    """Returns the address of each host by its name, h0, h1 ..."""
    return {f"h{host}": cluster.address(host) for host in range(cluster.size)}


def doctor(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    per_host: int = 1,
    settings: Mapping[int, Mapping[str, str]] | None = None,
    before: Mapping[int, str] | None = None,
    names: Mapping[int, Mapping[str, str]] | None = None,
    absent: Sequence[int] = (),
) -> dict[str, Any]:
    """Runs the doctor on all hosts of a cluster and returns its report.

    Args:
      cluster: the hosts.
      folder: an empty folder.
      *arguments: more arguments of the command.
      per_host: the number of ranks on each host.
      settings: more variables of the processes on a host.
      before: what a shell on a host does before it becomes the doctor.
      names: the names that a host knows, if these are not those of all hosts.
      absent: ranks that are not started.
    """
    size = cluster.size * per_host
    meeting = Meeting(cluster.address(0), _PORT, write_secret(folder), size)
    started = []
    for rank in range(size):
        host, local_rank = divmod(rank, per_host)
        if rank in absent:
            continue
        known = (names or {}).get(host, names_of(cluster))
        file = folder / f"hosts-{rank}"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in known.items())]
        file.write_text("\n".join(lines) + "\n")
        script = _SCRIPT.format(before=(before or {}).get(host, ""), python=sys.executable)
        environment = {
            **worker_environment(meeting, rank, local_rank, per_host),
            **(settings or {}).get(host, {}),
        }
        command = ["unshare", "--uts", "--mount", "sh", "-ec", script, "sh", str(file), f"h{host}"]
        job = cluster.popen(
            host,
            [*command, *arguments],
            environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(job.process)
    said = [process.communicate(timeout=LIMIT) for process in started]
    assert said[0][0], f"rank 0 has no report: {said}"
    report: dict[str, Any] = json.loads(said[0][0])
    assert not any(out for out, _ in said[1:]), "a rank besides rank 0 printed something"
    assert "Traceback" not in "".join(error for _, error in said), said
    assert started[0].returncode == int(report["verdict"] == "error")
    report["said"] = "".join(error for _, error in said)
    return report


def serious(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the subject and the sentence of each error and warning of a report."""
    return [
        (one["subject"], one["what"]) for one in report["findings"] if one["severity"] != "note"
    ]
