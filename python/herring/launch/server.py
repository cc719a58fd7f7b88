"""`herring server`: a dedicated server, until its job ends, or for job after job."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from herring.errors import ConfigurationError, PeerLostError, TimeoutError
from herring.launch.meet import meet_as_server

__all__ = ["run_server"]


def run_server(
    rendezvous: str | None = None, interface: str | None = None, stay: bool = False
) -> int:
    """Registers at the rendezvous and serves until all workers have left.

    Args:
        rendezvous: ``HOST:PORT``; ``HERRING_RENDEZVOUS`` by default.
        interface: Interface name or address to serve on; ``HERRING_INTERFACE`` by default.
        stay: Serve the next job at this rendezvous then, and so on, until SIGTERM or Ctrl-C; wait
            for each as long as it takes.

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
    if not stay:
        _serve(address, interface)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        with contextlib.suppress(TimeoutError):  # nobody has come yet
            try:
                _serve(address, interface)
            except PeerLostError as error:  # the job has failed; the next may not
                print(f"herring server: {error}", file=sys.stderr, flush=True)


def _serve(address: str, interface: str | None) -> None:
    meeting = meet_as_server(address)
    from herring import _core

    options: dict[str, object] = {"rendezvous": meeting.address, "secret": meeting.secret}
    if interface:
        options["interface"] = interface
    _core.run_server(options)
