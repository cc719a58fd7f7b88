"""Examines the job of this process: every rank calls `examine`, as it would call ``init()``."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Mapping

from herring.base.units import in_seconds
from herring.doctor import facts
from herring.doctor.agent import Agent, introduction
from herring.doctor.hub import Hub
from herring.doctor.records import Examination, Host, Rank
from herring.errors import ConfigurationError, HerringError, PeerLostError, TimeoutError
from herring.rendezvous import joined
from herring.rendezvous.channel import DOCTOR, Channel, call
from herring.rendezvous.detect import WorkerEnvironment, detect, parse_address
from herring.rendezvous.identity import host_identity
from herring.rendezvous.meet import Meeting, meet
from herring.rendezvous.network import own_address
from herring.rendezvous.settings import given, value_of

_RETRY_SECONDS = 0.2
_CALL_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class ExamineOptions:
    """What the user asked for."""

    time_limit: float = 60.0  # seconds after which the report comes, whatever is missing
    gradients: int = 100_000_000  # bytes of the gradients in the report's examples
    # The host of each rank, as far as the launcher told it.
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)
    curve: bool = False  # whether to measure messages of many sizes


def examine(options: ExamineOptions) -> Examination | None:
    """Examines the job that the environment describes.

    Returns:
        What was found out, on rank 0; None on the other ranks.

    Raises:
        ConfigurationError: The environment is missing, wrong or contradictory.
        AuthenticationError: Rank 0's doctor does not know this job's secret.
        TimeoutError: Rank 0 was not reached in time.
        PeerLostError: Rank 0 ended during the examination.
    """
    start = time.monotonic()
    worker = detect(os.environ)
    if worker.rendezvous.kind == "none":
        about = _alone(options)
    else:
        patience = min(value_of(os.environ, "HERRING_CONNECT_TIMEOUT"), options.time_limit / 2)
        meeting = meet(worker, os.environ, patience)
        try:
            joined.tell(worker.job, worker.rank)  # `herring run` would miss the rank otherwise
            left = max(start + patience - time.monotonic(), _RETRY_SECONDS)
            if worker.rank != 0:
                _follow(worker, meeting, left, options.time_limit)
                return None
            about = _lead(worker, meeting, left, start + options.time_limit, options)
        finally:
            meeting.close()
    about.seconds = time.monotonic() - start
    return about


def _alone(options: ExamineOptions) -> Examination:
    """Examines this host, which has the only rank."""
    address = own_address(interface=value_of(os.environ, "HERRING_INTERFACE"))
    told = introduction(0, "", address)
    rank = Rank(
        0, told["settings"], frozenset(told["cores"]), told["problem"], tuple(told["warnings"])
    )
    name = socket.gethostname()
    host = Host(name, name, address, [rank], facts.gather(address))
    return Examination(1, [host], source="single", gradients=options.gradients)


def _lead(
    worker: WorkerEnvironment,
    meeting: Meeting,
    patience: float,
    deadline: float,
    options: ExamineOptions,
) -> Examination:
    """Asks all hosts; this process answers for its own host, too."""
    place = worker.rendezvous
    about = Examination(
        worker.size,
        [],
        source=worker.source,
        rendezvous="" if _is_literal(place.host) else place.host,
        by_munge=place.kind == "munge",
        port_range=given(os.environ, "HERRING_PORTS") or "",
        gradients=options.gradients,
    )
    descriptor = meeting.take_descriptor()
    assert descriptor is not None  # rank 0 holds the rendezvous
    hub = Hub(
        socket.socket(fileno=descriptor), meeting.secret, worker.size, deadline, about
    )  # fmt: skip
    own = threading.Thread(target=_follow_quietly, args=(worker, meeting, patience, deadline))
    own.daemon = True
    try:
        own.start()
        hub.gather(patience, options.names)
        meeting.started()
        hub.examine(options.curve)
    finally:
        hub.close()
    own.join(1.0)
    return about


def _follow_quietly(
    worker: WorkerEnvironment, meeting: Meeting, patience: float, deadline: float
) -> None:
    """Answers for rank 0's host; the report names the host if it cannot answer."""
    with contextlib.suppress(OSError, HerringError):
        _follow(worker, meeting, patience, deadline - time.monotonic())


def _follow(
    worker: WorkerEnvironment, meeting: Meeting, patience: float, time_limit: float
) -> None:
    """Answers rank 0's questions if this rank is the first one of its host."""
    channel = _reach(worker, meeting, patience)
    with channel.socket:
        interface = value_of(os.environ, "HERRING_INTERFACE")
        address = own_address(interface=interface) if interface else ""
        address = address or str(channel.socket.getsockname()[0])
        channel.send(introduction(worker.rank, host_identity(), address))
        try:
            answer = channel.receive(time_limit)
            if "refused" in answer:
                raise ConfigurationError(f"rank 0 refuses this process: {answer['refused']}")
            if answer.get("examine"):
                Agent(channel, meeting.secret, address).serve(time_limit)
        except OSError as error:
            raise PeerLostError(
                f"rank {worker.rank} on {socket.gethostname()} lost rank 0 at {meeting.address} "
                f"({error.strerror or error}): look at the output of rank 0"
            ) from None


def _reach(worker: WorkerEnvironment, meeting: Meeting, patience: float) -> Channel:
    """Connects to rank 0, which may start later."""
    address, port = parse_address(meeting.address)
    deadline = time.monotonic() + patience
    reason = ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            return call(address, port, meeting.secret, DOCTOR, min(left, _CALL_SECONDS))
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(_RETRY_SECONDS, max(left, 0.0)))
    raise TimeoutError(
        f"rank {worker.rank} of {worker.size} on {socket.gethostname()} has waited "
        f"{in_seconds(patience)} for rank 0's doctor at {meeting.address} ({reason}): has rank 0 "
        "started 'herring doctor', and does a firewall let this port in?"
    )


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in ("", "localhost")
    return True
