"""A process group whose members change: torch's interface for fault tolerance, from 2.14 on.

A group begun with ``enable_reconfigure=True`` has no members until `reconfigure`, which may be
called again and again: after a member has died, before others come, after an abort. Each call ends
this process's job, if there is one, and begins another with the processes whose handles it gets.

A handle says where its process would listen if it were rank 0 of the next job. Until that call the
process listens nowhere; it only keeps a port.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from herring.arrays import runtime
from herring.base.units import counted
from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    HerringError,
    InvalidArgumentError,
    TimeoutError,
)
from herring.rendezvous.detect import WorkerEnvironment, parse_address
from herring.rendezvous.endpoint import bind, reserve
from herring.rendezvous.identity import host_identity
from herring.rendezvous.meet import Meeting, meet_nobody
from herring.rendezvous.network import loopback_address, own_address, with_port
from herring.torch.backend.group import HerringProcessGroup
from herring.torch.backend.joining import base_of, secret_of, worker_again
from herring.torch.backend.works import LocalWork

_KIND = "herring1"
_SECRET_BYTES = 32
_NO_MEMBERS = "the process group has no members yet: exchange handles and call reconfigure() first"
_FAILED = "the process group has no members since its last reconfigure() has failed: call it again"
_WHILE = "the process group was reconfigured before the operation was complete"


class _Handle(NamedTuple):
    """What a handle says."""

    process: str  # identifies the process group in its process
    turn: int  # counts the handles of this process group
    host: str  # identifies the host, without telling its name
    # Where other hosts reach the process if it is rank 0. Processes of its host reach it at the
    # same port of the loopback address.
    address: str

    def __str__(self) -> str:
        return f"{_KIND}/{self.process}/{self.turn}/{self.host}/{self.address}"

    @staticmethod
    def parse(text: str) -> _Handle:
        """Returns what a handle says.

        Raises:
          InvalidArgumentError: The text is not a handle of Herring's.
        """
        try:
            kind, process, turn, host, address = text.split("/")
            parse_address(address, "its address")
            if kind == _KIND and all((process, turn.isdecimal(), host)):
                return _Handle(process, int(turn), host, address)
        except (ValueError, ConfigurationError):
            pass
        raise InvalidArgumentError(
            f"reconfigure: {text[:120]!r} is not a handle of this version of Herring; give what "
            "get_reconfigure_handle() has returned on each member"
        )


class _Seat:
    """A port on which this process will listen if it is rank 0 of the next job."""

    def __init__(self, process: str, turn: int, towards: str) -> None:
        self._holder: socket.socket = reserve(os.environ)
        self.port: int = self._holder.getsockname()[1]
        address = own_address(towards, os.environ.get("HERRING_INTERFACE", ""))
        self.handle = _Handle(process, turn, _this_host(), with_port(address, self.port))

    def listen(self, local: bool) -> socket.socket:
        """Returns a socket that listens, for processes of this host only if `local` is true."""
        address = loopback_address() if local else parse_address(self.handle.address)[0]
        try:
            return bind(address, self.port)
        except OSError as error:
            raise ConfigurationError(
                f"rank 0 cannot listen at {with_port(address, self.port)}, which its handle names: "
                f"{error.strerror}"
            ) from error

    def close(self) -> None:
        """Gives the port back. Harmless to repeat."""
        self._holder.close()


@dataclass(frozen=True)
class _Plan:
    """A valid call of `reconfigure`."""

    uuid: int
    handles: list[_Handle]
    rank: int
    limit: float | None

    @property
    def local(self) -> bool:
        """Whether all members are on one host."""
        return len({handle.host for handle in self.handles}) == 1

    def secret(self, shared: bytes) -> bytes:
        """Returns the secret of the next job, which only members with the same plan know."""
        said = [_KIND, str(self.uuid), *map(str, self.handles)]
        return hmac.new(shared, "\n".join(said).encode(), hashlib.sha256).digest()


class ReconfigurableProcessGroup(HerringProcessGroup):
    """A default group of torch whose members are those of the latest `reconfigure`.

    Args:
      store: torch's store. It only shares a secret, and only if the user has given none.
      rank: What `rank` returns before the first `reconfigure`.
      size: What `size` returns before the first `reconfigure`.
      timeout: The timeout of operations.
      settings: Settings of `herring.init` for each job.

    Raises:
      ConfigurationError: The process is in a job already, or the environment is wrong.
    """

    supports_reconfigure = True

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, settings: dict[str, Any]
    ) -> None:
        if runtime.is_initialized():
            raise ConfigurationError(
                "init_process_group('herring', enable_reconfigure=True): this process is in a job "
                "already, by herring.init(); leave that out"
            )
        shared = _shared_secret(worker_again(0, 1), store)
        super().__init__(store, rank, size, timeout, (), False, _NO_MEMBERS)
        self._shared = shared
        self._settings = settings
        self._process = secrets.token_hex(8)
        self._turn = 0
        self._seat: _Seat | None = None
        self._uuids: set[int] = set()
        self._reconfiguring = threading.Lock()

    def get_reconfigure_handle(self) -> str:
        """Returns the handle of this process; it is good for one call of `reconfigure`."""
        with self._lock:
            if self._seat is None:
                self._turn += 1
                towards = getattr(base_of(self._store), "host", "")
                self._seat = _Seat(self._process, self._turn, towards)
            return str(self._seat.handle)

    def reconfigure(self, opts: Any) -> Any:
        """Ends the job of this process, and begins one with other members (collective among them).

        Args:
          opts: torch's `ReconfigureOptions`. All members give the same `uuid`, which none of them
            has used before, and the same `handles`. The place of its handle in the list is the rank
            of a process. A set is ordered by its texts. `timeout` is how long the others may take
            to come; None means ``HERRING_CONNECT_TIMEOUT``.

        Returns:
          A work that is complete.

        Raises:
          InvalidArgumentError: The arguments are wrong. Nothing was done.
          TimeoutError: A member did not come in time. The group has no members now, and another
            `reconfigure`, with new handles, may follow.
          AuthenticationError: Rank 0 was given another uuid, other handles or another secret.
        """
        if not self._reconfiguring.acquire(blocking=False):
            raise InvalidArgumentError("reconfigure: another thread is inside this call")
        try:
            plan = self._plan(opts)
            self._begin(plan)
        finally:
            self._reconfiguring.release()
        work = LocalWork(self._owner, [], self.rank(), 0.0)
        work.done()
        return work

    def shutdown(self) -> None:
        """Leaves the job, and gives back the port of the handle."""
        with self._lock:
            seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()
        super().shutdown()

    def _plan(self, opts: Any) -> _Plan:
        """Returns the call's arguments, checked.

        Raises:
          InvalidArgumentError: They are wrong.
        """
        others = {name for name in self._device_map().values() if name != "herring"}
        if others:
            raise InvalidArgumentError(
                f"reconfigure: the process group has the backend {min(others)!r} too; one with "
                "several backends cannot be reconfigured"
            )
        given, uuid = opts.handles, int(opts.uuid)
        texts = sorted(given) if isinstance(given, (set, frozenset)) else list(given)
        handles = [_Handle.parse(text) for text in texts]
        if len(set(handles)) < len(handles):
            raise InvalidArgumentError("reconfigure: a handle is given twice")
        if uuid in self._uuids:
            raise InvalidArgumentError(
                f"reconfigure: uuid {uuid} was already used; every call needs one of its own"
            )
        seat = self._seat
        if seat is None or seat.handle not in handles:
            stale = any(handle.process == self._process for handle in handles)
            raise InvalidArgumentError(
                f"reconfigure: none of the {counted(len(handles), 'handle')} is this process's "
                + ("latest one, because a handle is good for one call" if stale else "")
                + "; exchange handles again, each from get_reconfigure_handle()"
            )
        limit = None if opts.timeout is None else max(opts.timeout.total_seconds(), 0.01)
        return _Plan(uuid, handles, handles.index(seat.handle), limit)

    def _begin(self, plan: _Plan) -> None:
        seat, size = self._seat, len(plan.handles)
        assert seat is not None
        self._uuids.add(plan.uuid)
        self._seat = None
        deadline = None if plan.limit is None else time.monotonic() + plan.limit
        try:
            self._end(deadline)

            def met(worker: WorkerEnvironment, *_: float) -> Meeting:
                return _meeting(plan, plan.secret(self._shared), seat)

            settings = dict(self._settings)
            if deadline is not None:
                settings["connect_timeout"] = max(deadline - time.monotonic(), 0.01)
            if not runtime.start(lambda: worker_again(plan.rank, size), met, settings):
                raise ConfigurationError("herring.init() has begun a job at the same time")
        except HerringError as error:
            raise _explained(error, plan) from error
        finally:
            seat.close()
        self._hooks.begin_again()
        self._take_place(plan.rank, size, (), True, "")
        self._tell_name()

    def _end(self, deadline: float | None) -> None:
        """Ends what this process has of the job before."""
        rank, size = self.rank(), self.size()
        patience = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
        self.leave(_WHILE, max(patience, 0.0))
        if runtime.is_initialized():
            raise ConfigurationError(
                "this process is in a job of herring.init(); call herring.shutdown() first"
            )
        self._take_place(rank, size, (), False, _FAILED)


def _meeting(plan: _Plan, secret: bytes, seat: _Seat) -> Meeting:
    if len(plan.handles) == 1:
        return meet_nobody(secret)
    address = plan.handles[0].address
    if plan.local:
        address = with_port(loopback_address(), parse_address(address)[1])
    if plan.rank != 0:
        return Meeting(address, secret)
    return Meeting(address, secret, seat.listen(plan.local))


def _explained(error: HerringError, plan: _Plan) -> HerringError:
    """Returns an error that says which call has failed, and what may be the reason."""
    advice = "exchange handles again, and call it with another uuid"
    if isinstance(error, AuthenticationError):
        advice = (
            "rank 0 was given another uuid, other handles or another secret (HERRING_SECRET_FILE, "
            f"HERRING_SECRET): {advice}"
        )
    elif isinstance(error, TimeoutError):
        advice = f"a member that is missing may be dead, or was given other handles: {advice}"
    said = f"reconfigure(uuid={plan.uuid}) has failed on rank {plan.rank} of {len(plan.handles)}"
    return type(error)(f"{said}: {error} ({advice})")


def _this_host() -> str:
    return hashlib.sha256(host_identity().encode()).hexdigest()[:16]


def _shared_secret(worker: WorkerEnvironment, store: Any) -> bytes:
    """Returns the secret that the user has given; else one that the store shares."""
    given = secret_of(worker)
    if given is not None:
        return given
    made = secrets.token_hex(_SECRET_BYTES)
    try:
        found: bytes = store.compare_set(f"herring/{worker.job}/secret", "", made)
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigurationError(
            f"the store of init_process_group cannot share a secret ({error}): set "
            "HERRING_SECRET_FILE to the same file for all processes"
        ) from error
    return bytes.fromhex(found.decode())
