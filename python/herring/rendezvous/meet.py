"""Acts on what `herring.rendezvous.detect` found: binds, publishes and learns the rendezvous.

After `meet` every rank knows an address and the job's secret, and rank 0 holds the listening
socket. From then on the core does the work and calls nothing here.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import os
import re
import secrets
import socket
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from herring.base.reminders import FIRST_REMINDER, LONG_START
from herring.base.units import counted, in_seconds
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous import munge, publication, slurm
from herring.rendezvous.detect import (
    Rendezvous,
    ServerEnvironment,
    WorkerEnvironment,
    warn_of_weak_secret,
)
from herring.rendezvous.endpoint import bind_any, is_loopback_name, listen, resolve, within_reach
from herring.rendezvous.network import is_local_address, loopback_address, own_address, with_port
from herring.rendezvous.secret_server import SecretServer, ask
from herring.rendezvous.settings import setting, value_of

SECRET_BYTES = 32
DEFAULT_TIMEOUT = 60.0
_MUNGE_SOCKETS = ("/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2")

_meetings: weakref.WeakSet[Meeting] = weakref.WeakSet()
_inherited: dict[int, tuple[int, int]] = {}  # descriptors, and the identities of their sockets
# How often this process has met under a key. A second init must not read the first one's file.
_uses: defaultdict[str, itertools.count] = defaultdict(itertools.count)
# The secrets that this process made up, by address. A late reader thus still gets the right one.
_made_up: dict[str, bytes] = {}


class Meeting:
    """What a process needs in order to register."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        listener: socket.socket | None = None,
        withdraw: Callable[[], None] | None = None,
    ) -> None:
        self.address = address  # ``HOST:PORT`` to connect to, with an address literal
        self.secret = secret  # the job's secret
        self._listener = listener
        self._withdraw = withdraw
        _meetings.add(self)

    def take_descriptor(self) -> int | None:
        """Returns the listening socket (rank 0), which the caller must close, or None."""
        listener, self._listener = self._listener, None
        return None if listener is None else listener.detach()

    def started(self) -> None:
        """Removes the published secret; call it once all processes have registered."""
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()

    def close(self) -> None:
        """Gives up: removes what was published, and closes a socket that was not taken."""
        self.started()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def __repr__(self) -> str:
        return f"Meeting(address={self.address!r}, secret=<hidden>)"

    def _forget(self) -> None:
        if self._listener is not None:
            self._listener.close()
        owner = getattr(self._withdraw, "__self__", None)
        if isinstance(owner, (publication.Publication, SecretServer)):
            owner.close()
        self._withdraw = None


def _in_forked_child() -> None:
    # A forked child, such as a data loader's worker, must not keep sockets and locks of a dead
    # parent alive.
    for meeting in list(_meetings):
        with contextlib.suppress(OSError):
            meeting._forget()
    for descriptor, identity in _inherited.items():
        with contextlib.suppress(OSError):
            # The program may have closed it, and the number may now belong to another file.
            if _identity(descriptor) == identity:
                os.close(descriptor)
    _inherited.clear()


os.register_at_fork(after_in_child=_in_forked_child)


def meet(
    worker: WorkerEnvironment,
    environ: Mapping[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    first_reminder: float = FIRST_REMINDER,
) -> Meeting:
    """Learns the rendezvous and the secret; on rank 0, publishes them.

    Args:
        environ: The same environment; ``os.environ`` by default.
        timeout: Seconds to wait for rank 0 or its store.
        first_reminder: Seconds after which such a wait first says what it waits for.

    Returns:
        The meeting. Call `Meeting.started` after registration, `Meeting.close` after a failure.

    Raises:
        ConfigurationError: The port is in use, the host is unknown, or the secret cannot be read or
            is too short.
        TimeoutError: Rank 0 did not publish in time.
    """
    environ = os.environ if environ is None else environ
    given = _given_secret(worker.secret_file, worker.secret)
    kind = worker.rendezvous.kind
    wait = publication.Wait(f"rank {worker.rank} of {worker.size}", timeout, first_reminder)
    if kind == "none":
        return meet_nobody(given, environ)
    if kind == "torch":
        return _meet_by_torch(worker, environ, given, wait)
    if kind == "file":
        return _meet_by_file(worker, environ, given, wait)
    if kind == "munge":
        return _meet_by_munge(worker, environ, wait)
    return _meet_at_address(worker, environ, given, wait)


def meet_nobody(secret: bytes | None = None, environ: Mapping[str, str] | None = None) -> Meeting:
    """Returns what the only worker of a job needs.

    Args:
        secret: The job's secret; None makes one up.
        environ: The environment; ``os.environ`` by default.

    Raises:
        ConfigurationError: This machine has no loopback address.
    """
    listener = bind_any(loopback_address(), os.environ if environ is None else environ)
    return Meeting(_address_of(listener), secret or secrets.token_bytes(SECRET_BYTES), listener)


def meet_as_server(
    server: ServerEnvironment,
    environ: Mapping[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    first_reminder: float = FIRST_REMINDER,
    waited: float = 0.0,
) -> Meeting:
    """Learns the rendezvous and the secret for a dedicated server.

    Args:
        server: The result of `herring.rendezvous.detect.detect_server`.
        environ: The same environment; ``os.environ`` by default.
        timeout: Seconds to wait for rank 0.
        first_reminder: Seconds after which such a wait first says what it waits for.
        waited: Seconds for which the server has already waited for this job.

    Raises:
        ConfigurationError: The host is unknown, or the secret cannot be read or is too short. Or
            there is no secret, the rendezvous is on another host, and MUNGE does not help.
        TimeoutError: Rank 0 did not publish in time.
    """
    environ = os.environ if environ is None else environ
    place = server.rendezvous
    # A launcher has started rank 0 together with this server, which imports less than rank 0.
    launched = LONG_START if place.kind in ("file", "munge") else None
    wait = publication.Wait("this server", timeout, first_reminder, waited, launched)
    secret = _given_secret(server.secret_file, server.secret)
    if place.kind == "file":
        key = _note_key(place, f"{server.job}-{server.source}", server.rank_variable)
        note = publication.wait_for(environ, key, wait)
        _require_behind(server, note)
        return Meeting(note["address"], secret or _shared_secret(note))
    if place.kind == "munge":
        note = _ask_gate(place, place.key, environ, wait)
        if note["step"] == environ.get("SLURM_STEP_ID", ""):  # not a step of its own
            _require_behind(server, note)
        return Meeting(note["address"], bytes.fromhex(note["secret"]))
    resolved = resolve(place.host, place.variable, environ, wait)
    if secret is None:
        if not is_local_address(resolved):
            raise ConfigurationError(
                f"HERRING_SECRET_FILE is not set, and the rendezvous {place.address} is on another "
                "host: copy the job's secret file to this host and set HERRING_SECRET_FILE to its "
                "path"
            )
        note = _note_of_address(place, environ, wait)
        secret = bytes.fromhex(note["secret"])
    host = within_reach(place.host, resolved, environ)
    return Meeting(with_port(host, place.port), secret)


def read_secret_file(path: str) -> bytes:
    """Returns a file's content, stripped, as the secret; it must have 16 bytes or more."""
    try:
        with open(path, "rb") as file:
            secret, mode = file.read().strip(), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigurationError(
            f"HERRING_SECRET_FILE={path} cannot be read: {error.strerror}; copy the job's secret "
            "file to this host, readable for the user of this process, and set HERRING_SECRET_FILE "
            "to its absolute path"
        ) from error
    if mode & 0o077 and "KUBERNETES_SERVICE_HOST" not in os.environ:  # normal in Kubernetes
        from herring import _core

        _core.log_warning(
            f"HERRING_SECRET_FILE={path} can be read or written by others on this machine, who "
            f"could join the job: chmod 600 {path}"
        )
    least = int(setting("HERRING_SECRET").minimum) // 2
    if len(secret) < least:
        raise ConfigurationError(
            f"HERRING_SECRET_FILE={path} holds {len(secret)} bytes: allowed are at least "
            f"{least} (for example from 'openssl rand -hex 32')"
        )
    warn_of_weak_secret(secret, f"HERRING_SECRET_FILE={path} holds")
    return secret


def _given_secret(path: str | None, value: bytes | None) -> bytes | None:
    return value if path is None else read_secret_file(path)


def _shared_secret(note: Mapping[str, str]) -> bytes:
    if not note["secret"]:
        raise ConfigurationError(
            "rank 0 was given a secret (HERRING_SECRET_FILE or HERRING_SECRET), but this process "
            "was not: set HERRING_SECRET_FILE for all ranks"
        )
    return bytes.fromhex(note["secret"])


def _meet_at_address(
    worker: WorkerEnvironment,
    environ: Mapping[str, str],
    secret: bytes | None,
    wait: publication.Wait,
) -> Meeting:
    place = worker.rendezvous
    resolved = resolve(place.host, place.variable, environ, wait)
    key = _address_key(place.port)
    if worker.rank != 0:
        if secret is None:
            note = _note_of_address(place, environ, wait)
            secret = bytes.fromhex(note["secret"])
        host = within_reach(place.host, resolved, environ)
        return Meeting(with_port(host, place.port), secret)
    host = within_reach(place.host, resolved, environ)
    if place.descriptor is not None:
        listener = _inherited_listener(place.descriptor, place)
    else:
        listener = listen(place.host, resolved, host, place.port, place.variable)
    if not is_loopback_name(place.host) and not is_local_address(resolved):
        _require_first_node(place, environ)
        host = own_address(interface=value_of(environ, "HERRING_INTERFACE"))  # seen by others
        _warn_of_foreign_address(place, resolved, environ)
    note = None
    if secret is None:
        secret = _made_up.setdefault(key, secrets.token_bytes(SECRET_BYTES))
        note = _publish(listener, environ, key, {"secret": secret.hex()})
    address = with_port(host, place.port)
    return Meeting(address, secret, listener, note.withdraw if note else None)


def _meet_by_file(
    worker: WorkerEnvironment,
    environ: Mapping[str, str],
    secret: bytes | None,
    wait: publication.Wait,
) -> Meeting:
    name = f"{worker.job}-{worker.source}"
    key = _note_key(worker.rendezvous, name, worker.rank_variable)
    if worker.rank != 0:
        wait.who += f" (found by {worker.rank_variable})"
        note = publication.wait_for(environ, key, wait)
        return Meeting(note["address"], secret or _shared_secret(note))
    listener = bind_any(loopback_address(), environ)
    address = _address_of(listener)
    shared = secret or secrets.token_bytes(SECRET_BYTES)
    # The user's own secret stays in the user's file.
    content = {"address": address, "secret": "" if secret else shared.hex()}
    content["size"] = str(worker.size)
    note = _publish(listener, environ, key, content)
    return Meeting(address, shared, listener, note.withdraw)


def _meet_by_munge(
    worker: WorkerEnvironment, environ: Mapping[str, str], wait: publication.Wait
) -> Meeting:
    place = worker.rendezvous
    # Workers ask for this start of the job by its number; a server does not know the number.
    key = f"{place.key}#{next(_uses[place.key])}"
    if worker.rank != 0:
        note = _ask_gate(place, key, environ, wait)
        return Meeting(note["address"], bytes.fromhex(note["secret"]))
    socket_path = _munge_socket(environ)
    munge.encode(b"", socket_path)  # raises an error if MUNGE is missing, before anybody waits
    resolved = resolve(place.host, place.variable, environ, wait)
    host = within_reach(place.host, resolved, environ)
    server_listener = listen(place.host, resolved, host, place.port, place.variable)
    try:
        if not is_local_address(host):
            _require_first_node(place, environ)
            host = own_address(interface=value_of(environ, "HERRING_INTERFACE"))
        listener = bind_any(host, environ)
    except BaseException:
        server_listener.close()
        raise
    secret = secrets.token_bytes(SECRET_BYTES)
    address = _address_of(listener)
    content = {"address": address, "secret": secret.hex(), "size": str(worker.size)}
    content["step"] = environ.get("SLURM_STEP_ID", "")
    server = SecretServer(server_listener, (key, place.key), content, *_codec(socket_path))
    return Meeting(address, secret, listener, server.close)


def _ask_gate(
    place: Rendezvous, key: str, environ: Mapping[str, str], wait: publication.Wait
) -> dict[str, str]:
    socket_path = _munge_socket(environ)
    host = resolve(place.host, place.variable, environ, wait)
    return ask(host, place.port, key, wait, *_codec(socket_path))


def _codec(socket_path: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    return (
        functools.partial(munge.encode, socket=socket_path),
        functools.partial(munge.decode, socket=socket_path),
    )


def _munge_socket(environ: Mapping[str, str]) -> str:
    if any(Path(each).exists() for each in _MUNGE_SOCKETS):
        return ""
    return slurm.munge_socket(environ)


def _require_first_node(place: Rendezvous, environ: Mapping[str, str]) -> None:
    """Refuses a rank 0 on a host where the other processes do not look for it."""
    node = environ.get("SLURMD_NODENAME", "")
    if place.variable == "Slurm" and node and node != place.host:
        raise ConfigurationError(
            f"rank 0 runs on {node}, but the others look for it on {place.host}, the first node of "
            "the job: start the workers' step there, or set HERRING_RENDEZVOUS=HOST:PORT for all "
            "workers and servers, with the host of rank 0 and a free port there"
        )


def _require_behind(server: ServerEnvironment, note: Mapping[str, str]) -> None:
    """Refuses a server whose rank is among the first ranks, which the job takes for workers."""
    size = int(note.get("size", "0"))
    if server.rank is not None and server.rank < size:
        raise ConfigurationError(
            f"this server is rank {server.rank} of its launch ({server.rank_variable}), but the "
            f"job waits for {counted(size, 'worker')}: put the servers last, and set HERRING_SIZE "
            "to the number of workers for these, as in 'mpirun -n 4 -x HERRING_SIZE=4 python "
            "train.py : -n 2 herring server'"
        )


def _note_of_address(
    place: Rendezvous, environ: Mapping[str, str], wait: publication.Wait
) -> dict[str, str]:
    what = f"listen at {place.address}"
    return publication.wait_for(environ, _address_key(place.port), wait, what)


def _warn_of_foreign_address(place: Rendezvous, resolved: str, environ: Mapping[str, str]) -> None:
    """Warns if the other processes look for rank 0 at an address that is not its host's."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return  # where a service has an address of its own
    from herring import _core

    name = place.host if place.host == resolved else f"{place.host} ({resolved})"
    _core.log_warning(
        f"{place.variable} names {name}, which is not an address of rank 0's host: rank 0 listens "
        f"at port {place.port} of all addresses of this host, and the others reach it only if "
        f"something forwards {resolved} to it; else set {place.variable} to an address of the "
        "host on which rank 0 runs"
    )


def _note_key(place: Rendezvous, name: str, rank_variable: str) -> str:
    """Returns the name of the file that rank 0 writes on the only host; each start has its own."""
    key = place.key or f"{name}-{publication.launcher_key(rank_variable)}"
    return f"{key}-{next(_uses[key])}"


def _meet_by_torch(
    worker: WorkerEnvironment,
    environ: Mapping[str, str],
    secret: bytes | None,
    wait: publication.Wait,
) -> Meeting:
    place = worker.rendezvous
    name = f"herring/{place.key}/{worker.restart}"
    name += f"/{next(_uses[name])}"
    if worker.rank != 0:
        content = json.loads(_read_torch_store(worker, name, wait))
        return Meeting(content["address"], secret or _shared_secret(content))
    store = _torch_store(worker, wait.timeout)
    host = loopback_address() if worker.single_host else ""
    host = host or own_address(place.host, value_of(environ, "HERRING_INTERFACE"))
    listener = bind_any(host, environ)
    address = _address_of(listener)
    shared = secret or secrets.token_bytes(SECRET_BYTES)
    content = {"address": address, "secret": "" if secret else shared.hex()}
    try:
        store.set(name, json.dumps(content))
    except Exception as error:
        listener.close()
        raise ConfigurationError(
            f"cannot write to the torch store at {place.address} (MASTER_ADDR, MASTER_PORT): "
            f"{_first_line(error)}"
        ) from error

    def withdraw() -> None:
        with contextlib.suppress(Exception):  # the launcher may have ended first
            store.delete_key(name)

    return Meeting(address, shared, listener, withdraw)


def _read_torch_store(worker: WorkerEnvironment, name: str, wait: publication.Wait) -> bytes:
    """Returns what rank 0 published under `name`."""
    # Rank 0 may be ending the store of an earlier job in the same processes, so this function
    # connects again when a connection breaks. It polls so that Ctrl-C works.
    store, pause, reason = None, 0.01, ""
    while True:
        if store is None:
            store = _reach_torch_store(worker, wait)
        try:
            if store.check([name]):
                return store.get(name)
        except Exception as error:
            store, reason = None, f": {_first_line(error)}"
        if not wait.goes_on(f"publish {name} in the torch store at {worker.rendezvous.address}"):
            raise TimeoutError(
                f"{wait.who} has waited {in_seconds(wait.timeout)} "
                f"(HERRING_CONNECT_TIMEOUT) for rank 0 to publish {name} in the torch store at "
                f"{worker.rendezvous.address} (MASTER_ADDR, MASTER_PORT){reason}"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


def _reach_torch_store(worker: WorkerEnvironment, wait: publication.Wait) -> Any:
    """Connects to the torch store in slices of time, because torch says nothing while it waits."""
    while True:
        slice_, start = wait.quiet(), time.monotonic()
        try:
            return _torch_store(worker, slice_)
        except ConfigurationError:
            at_once = time.monotonic() - start < slice_ / 2
            what = f"serve the torch store at {worker.rendezvous.address} (or its torchrun)"
            if at_once or not wait.goes_on(what):
                raise


def _torch_store(worker: WorkerEnvironment, timeout: float) -> Any:
    place = worker.rendezvous
    try:
        from torch.distributed import TCPStore
    except ImportError as error:
        raise ConfigurationError(
            f"{worker.rank_variable}={worker.rank} looks like torchrun, but torch cannot be "
            f"imported ({error}) to reach its store: install torch, or set "
            "HERRING_RENDEZVOUS=HOST:PORT"
        ) from error
    try:
        return TCPStore(
            place.host,
            place.port,
            None,
            # torchrun's agent serves the store. If the variables were set by hand, rank 0 serves
            # it, and shares it with torch.distributed in this process.
            worker.rank == 0 and not worker.store_is_served,
            timeout=datetime.timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except Exception as error:
        raise ConfigurationError(
            f"cannot reach the torch store at MASTER_ADDR={place.host}, MASTER_PORT={place.port} "
            f"(variables of torchrun): {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _publish(
    listener: socket.socket, environ: Mapping[str, str], key: str, content: Mapping[str, str]
) -> publication.Publication:
    try:
        return publication.Publication(publication.directory(environ), key, content)
    except ConfigurationError:
        listener.close()
        raise


def _address_of(listener: socket.socket) -> str:
    return with_port(*listener.getsockname()[:2])


def _address_key(port: int) -> str:
    # A port has one listener per machine and network namespace, while names of the host vary.
    namespace = "0"
    with contextlib.suppress(OSError):
        namespace = re.sub(r"\D", "", os.readlink("/proc/self/ns/net"))
    return f"port-{port}-{namespace}"


def _inherited_listener(descriptor: int, place: Rendezvous) -> socket.socket:
    allowed = (
        "the number of a listening TCP socket that this process inherited, as 'herring run' sets "
        "it (a program in between may have closed it: unset HERRING_RENDEZVOUS_FD and set "
        "HERRING_RENDEZVOUS to a free port)"
    )
    try:
        # The descriptor is copied so that a second init after a shutdown finds the socket again.
        listener = socket.socket(fileno=os.dup(descriptor))
        listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        port = listener.getsockname()[1]
        os.set_inheritable(descriptor, False)
    except (OSError, IndexError) as error:
        raise ConfigurationError(
            f"HERRING_RENDEZVOUS_FD={descriptor} is not valid ({error}): allowed is {allowed}"
        ) from error
    if not listening or port != place.port:
        listener.close()
        raise ConfigurationError(
            f"HERRING_RENDEZVOUS_FD={descriptor} does not listen on {place.address}: allowed is "
            f"{allowed}"
        )
    _inherited[descriptor] = _identity(descriptor)
    return listener


def _identity(descriptor: int) -> tuple[int, int]:
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino
