"""Builds the environment variables of a job's processes on emulated hosts."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
from collections.abc import Mapping

from herring.launch.commands import module_command

#: The command of a dedicated server; everything else is in its environment.
SERVER_COMMAND = (*module_command("herring.command.cli"), "server")

_PEER_PORTS = 100  # the port of torch.distributed's store, relative to the rendezvous


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The facts on which all processes of a job agree.

    Attributes:
      address: the address of the host of rank 0.
      port: the port of the rendezvous on this host. A library that is compared with Herring meets
        one port above, and ``MASTER_PORT`` is 100 above.
      secret_file: path of the file with the job's secret.
      workers: the number of workers.
      servers: the number of dedicated servers.
      interface: the network interface of every host.
      settings: more variables for every process, such as ``HERRING_...`` settings.
    """

    address: str
    port: int
    secret_file: str
    workers: int
    servers: int = 0
    interface: str = "eth0"
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


def write_secret(directory: str | pathlib.Path) -> str:
    """Writes a random secret to a file in `directory` (mode 0600) and returns its path."""
    path = pathlib.Path(directory, "secret")
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return str(path)


def server_environment(meeting: Meeting) -> dict[str, str]:
    """Returns the variables that a dedicated server needs beside those of this process."""
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
    """Returns the variables that a worker needs for Herring and for torch.distributed.

    Args:
      meeting: the job.
      rank: the worker's rank in the job.
      local_rank: the worker's rank among the workers of its host.
      local_size: the number of workers on its host.
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
