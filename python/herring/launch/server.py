"""Runs a dedicated server for one job, or for one job after another."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from herring.errors import ConfigurationError, HerringError, PeerLostError, TimeoutError
from herring.lobby.notice import EXIT_LEFT, Notice
from herring.rendezvous.detect import ServerEnvironment, detect_server
from herring.rendezvous.meet import meet_as_server
from herring.rendezvous.settings import value_of

if TYPE_CHECKING:
    from herring.lobby.connection import Connection

# Seconds "waited" between two jobs: a server that has served one job may wait for the next one for
# as long as it likes, so no reminder is due for years.
_IDLE = -1e8


def run_server(
    rendezvous: str | None = None,
    interface: str | None = None,
    stay: bool = False,
    ready_file: str | None = None,
) -> int:
    """Registers at the rendezvous and serves until all workers have left.

    Args:
        rendezvous: ``HOST:PORT``; by default ``HERRING_RENDEZVOUS``, else the address that follows
            from Slurm's or mpirun's variables, if they started the server with the workers.
        interface: Interface name or address to serve on; ``HERRING_INTERFACE`` by default.
        stay: Serve one job after another at this rendezvous, until SIGTERM or Ctrl-C, and wait for
            each without a time limit.
        ready_file: File that exists while the server runs, from the moment when it waits for its
            job: for a readiness probe.

    Returns:
        0 when the job has ended.

    Raises:
        ConfigurationError: The rendezvous or the secret is missing, or a setting is wrong.
        HerringError: The core failed, for example because the rendezvous cannot be reached.
        SystemExit: The server has left an elastic job, as it was told to (75).
    """
    from herring import _core
    from herring.process import logs

    elastic = bool(os.environ.get("HERRING_ELASTIC", "").strip())
    server = None if elastic else detect_server(os.environ, rendezvous)
    log_settings = logs.start({})
    since = time.monotonic()  # when the wait for a job began
    notice = Notice.parse(value_of(os.environ, "HERRING_NOTICE")) if elastic else None
    if (stay or ready_file or elastic) and (notice is None or notice.signal != signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _ready(ready_file):
        if server is None:
            _serve_generations(interface, log_settings)
            return 0
        if not stay:
            _serve(server, interface, 0.0, log_settings)
            return 0
        served = False
        while True:
            waited = _IDLE if served else time.monotonic() - since
            try:
                _serve(server, interface, waited, log_settings)
            except TimeoutError:  # no worker has come yet
                continue
            except PeerLostError as error:  # this job failed; the next one may not
                _core.log_error(str(error))
            served = True


def _serve_generations(interface: str | None, settings: dict[str, str]) -> None:
    """Serves the generations of an elastic job until it ends, or has notice of its own end."""
    from herring import _core
    from herring.elastic.running import connect, heeding_notice
    from herring.lobby.connection import MemberLeft

    connection = connect(os.environ, server=True)
    with heeding_notice(connection.leave, lambda: connection.job_ends):
        try:
            _serve_each_generation(connection, interface, settings)
        except MemberLeft as left:
            _core.log_info(str(left))
            connection.close()
            sys.exit(EXIT_LEFT)


def _serve_each_generation(
    connection: Connection, interface: str | None, settings: dict[str, str]
) -> None:
    from herring import _core
    from herring.elastic.running import settings_of
    from herring.lobby.connection import TrainingEnded

    while True:
        try:
            present = connection.next_generation()
        except TrainingEnded:
            return
        options: dict[str, object] = {
            **settings,
            **settings_of(os.environ, present),
            "rendezvous": present.address,
            "secret": present.secret,
        }
        if interface:
            options["interface"] = interface
        try:
            with connection.starting():
                _core.run_server(options)
        except HerringError as error:
            if not connection.broken and not isinstance(error, (PeerLostError, TimeoutError)):
                raise
            _core.log_info(f"this generation of the elastic job has failed: {error}")


@contextlib.contextmanager
def _ready(path: str | None) -> Iterator[None]:
    """Keeps the file in place while the server runs."""
    importlib.import_module("herring._core")  # the server is not ready without it
    if path is None:
        yield
        return
    try:  # a signal that ends the server may come right after the file
        try:
            Path(path).touch()
        except OSError as error:
            raise ConfigurationError(
                f"--ready-file {path} cannot be written: {error.strerror}"
            ) from None
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _serve(
    server: ServerEnvironment, interface: str | None, waited: float, settings: dict[str, str]
) -> None:
    """Serves one job.

    Args:
        interface: See `run_server`.
        waited: Seconds for which the server has waited for the job already.
        settings: Settings of the core besides those of the environment.
    """
    from herring import _core

    patience, first_reminder, _ = _core.start_up_times({})
    start = time.monotonic()
    meeting = meet_as_server(server, os.environ, patience, first_reminder, waited)
    options: dict[str, object] = {
        **settings,
        "rendezvous": meeting.address,
        "secret": meeting.secret,
        "waited": waited + time.monotonic() - start,
    }
    if interface:
        options["interface"] = interface
    _core.run_server(options)
