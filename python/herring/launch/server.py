"""`herring server`: a dedicated server, until its job ends."""

from __future__ import annotations

import os

from herring.errors import ConfigurationError
from herring.launch.meet import meet_as_server

__all__ = ["run_server"]


def run_server(rendezvous: str | None = None, interface: str | None = None) -> int:
    """Registers at the rendezvous and serves until all workers have left.

    Args:
        rendezvous: ``HOST:PORT``; ``HERRING_RENDEZVOUS`` by default.
        interface: Interface name or address to serve on; ``HERRING_INTERFACE`` by default.

    Returns:
        0 when the job has ended.

    Raises:
        ConfigurationError: No rendezvous, no secret, or a setting is wrong.
        HerringError: As the core reports it (rendezvous not reachable, secret wrong, ...).
    """
    address = rendezvous or os.environ.get("HERRING_RENDEZVOUS", "").strip()
    if not address:
        raise ConfigurationError(
            "the server does not know where the job meets: give --rendezvous HOST:PORT or set "
            "HERRING_RENDEZVOUS, as for the workers"
        )
    meeting = meet_as_server(address)
    from herring import _core

    options: dict[str, object] = {"rendezvous": meeting.address, "secret": meeting.secret}
    if interface:
        options["interface"] = interface
    _core.run_server(options)
    return 0
