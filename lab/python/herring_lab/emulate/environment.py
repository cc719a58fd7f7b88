"""The environment that a job's processes are started in, for everyone who starts jobs on hosts."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
from collections.abc import Mapping

from herring.launch.commands import module_command

__all__ = ["SERVER_COMMAND", "Meeting", "server_environment", "worker_environment", "write_secret"]

#: What a dedicated server is started as; everything else is in its environment.
SERVER_COMMAND = (*module_command("herring.launch.cli"), "server")

_PEER_PORTS = 100  # torch.distributed's own store is this much above the rendezvous


@dataclasses.dataclass(frozen=True)
class Meeting:
    """What all processes of a job agree on.

    Attributes:
      address: of the host of rank 0.
      port: of the rendezvous there; a benchmark's peer meets one port above, ``MASTER_PORT`` is
        100 above.
      secret_file: path of the job's secret.
      workers: how many.
      servers: how many dedicated ones.
      interface: network interface of every host.
      settings: more variables for every process, ``HERRING_...`` settings above all.
    """

    address: str
    port: int
    secret_file: str
    workers: int
    servers: int = 0
    interface: str = "eth0"
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


def write_secret(directory: str | pathlib.Path) -> str:
    """Makes up a secret; returns the path of the file in `directory` that holds it (mode 0600)."""
    path = pathlib.Path(directory, "secret")
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return str(path)


def server_environment(meeting: Meeting) -> dict[str, str]:
    """Returns the variables of a dedicated server, to add to this process's own."""
    return {
        "HERRING_RENDEZVOUS": f"{meeting.address}:{meeting.port}",
        "HERRING_SECRET_FILE": meeting.secret_file,
        "HERRING_SIZE": str(meeting.workers),
        "HERRING_SERVERS": str(meeting.servers),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        **meeting.settings,
    }


def worker_environment(
    meeting: Meeting, rank: int, local_rank: int, local_size: int
) -> dict[str, str]:
    """Returns the variables of a worker: Herring's, and what torch.distributed asks for.

    Args:
      meeting: the job.
      rank: of the worker, in the job.
      local_rank: among the workers of its host.
      local_size: workers of its host.
    """
    return {
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port + _PEER_PORTS),
        "WORLD_SIZE": str(meeting.workers),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GLOO_SOCKET_IFNAME": meeting.interface,
        "NCCL_SOCKET_IFNAME": meeting.interface,
        **server_environment(meeting),
        "HERRING_RANK": str(rank),
        "HERRING_LOCAL_RANK": str(local_rank),
        "HERRING_LOCAL_SIZE": str(local_size),
    }
