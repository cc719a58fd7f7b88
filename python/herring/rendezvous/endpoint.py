"""The rendezvous' endpoint: host names become addresses, and rank 0 listens."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import time
from collections.abc import Mapping

from herring.base.units import in_seconds
from herring.errors import ConfigurationError
from herring.rendezvous import slurm
from herring.rendezvous.network import is_local_address, own_address
from herring.rendezvous.publication import Wait
from herring.rendezvous.settings import port_range, value_of

_POLL_SECONDS = 0.5


def resolve(host: str, variable: str, environ: Mapping[str, str], wait: Wait) -> str:
    """Returns the address of a host.

    A Slurm node need not have a name that resolves; the address is then the one under which Slurm
    reaches the node. In Kubernetes a pod's name resolves only once the pod runs, so this function
    waits for the name.

    Args:
        host: A name or an address literal.
        wait: Who waits, and how long it may take.

    Returns:
        An address literal.

    Raises:
        ConfigurationError: The host cannot be resolved.
    """
    while True:
        try:
            return _look_up(host)
        except OSError as error:
            reason = error.strerror or str(error)
        if slurm.in_job(environ):
            address = slurm.node_address(host, environ)
            if not address:
                reason += f", and 'scontrol show node {host}' gives no address either"
                raise _unknown(host, variable, reason)
            try:
                return _look_up(address)
            except OSError:
                reason += f", nor can its NodeAddr {address!r}"
                raise _unknown(host, variable, reason) from None
        if "KUBERNETES_SERVICE_HOST" not in environ:
            raise _unknown(host, variable, reason)
        if not wait.goes_on(f"have the name {host}"):
            reason += f" ({in_seconds(wait.timeout)}, HERRING_CONNECT_TIMEOUT): does its pod run?"
            raise _unknown(host, variable, reason)
        time.sleep(min(_POLL_SECONDS, wait.left()))


def within_reach(host: str, resolved: str, environ: Mapping[str, str]) -> str:
    """Returns the rendezvous' address as seen by a process that others must reach.

    Processes advertise the address from which they reach the rendezvous. On rank 0's own machine
    its name often means 127.0.1.1, which is useless to processes elsewhere.
    """
    if is_loopback_name(host) or not ipaddress.ip_address(resolved.partition("%")[0]).is_loopback:
        return resolved
    return own_address(interface=value_of(environ, "HERRING_INTERFACE"))


def is_loopback_name(host: str) -> bool:
    """Returns whether `host` always means this machine, so that only this machine can use it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, resolved: str, seen: str, port: int, variable: str) -> socket.socket:
    """Listens at the rendezvous: at a literal of this machine exactly, else on every interface.

    Args:
        seen: The address under which others reach the host, from `within_reach`. It may be an IPv6
            address even if this machine's own name means 127.0.1.1.
        port: 1 to 65535.

    Raises:
        ConfigurationError: The port is taken.
    """
    literal = host == resolved and is_local_address(resolved)
    everywhere = "::" if ":" in seen else "0.0.0.0"
    where = resolved if literal or is_loopback_name(host) else everywhere
    try:
        return bind(where, port)
    except OSError as error:
        advice = "choose another port, the same for all ranks and servers"
        if variable == "Slurm":
            advice = (
                "for several jobs at once in one allocation set HERRING_JOB differently for each, "
                "else HERRING_RENDEZVOUS=HOST:PORT, the same for all ranks and servers"
            )
        raise ConfigurationError(
            f"{variable} names port {port}, which rank 0 cannot listen on ({error.strerror}): "
            f"{advice}"
        ) from error


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at `host` (a literal) and `port` (0 means any port)."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener


def bind_any(host: str, environ: Mapping[str, str]) -> socket.socket:
    """Returns a socket that listens at `host`, at a free port of ``HERRING_PORTS`` if that is set.

    Raises:
        ConfigurationError: No port of the range is free.
        OSError: The address is not one of this machine's.
    """
    ports = port_range(environ)
    if ports is None:
        return bind(host, 0)
    for port in ports:
        try:
            return bind(host, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise _used_up(environ, ports, host)


def reserve(environ: Mapping[str, str]) -> socket.socket:
    """Keeps a port free for another process of this machine until the socket is closed.

    The system gives the port neither to a process that asks for any port nor to a connection. A
    process that asks for this port with SO_REUSEADDR, as servers do (torch's store among them),
    gets it, on each address. With ``HERRING_PORTS`` the port is the last free one, because
    listeners begin with the first.

    Returns:
        A socket that is bound and does not listen.

    Raises:
        ConfigurationError: No port of ``HERRING_PORTS`` is free.
    """
    ports = port_range(environ)
    if ports is None:
        return _hold(0)
    for port in reversed(ports):
        with contextlib.suppress(OSError):
            _hold(port, shared=False).close()  # fails if another process holds the port
            return _hold(port)
    raise _used_up(environ, ports, "any address")


def _hold(port: int, shared: bool = True) -> socket.socket:
    try:
        holder = socket.socket(socket.AF_INET6)
        everywhere = "::"
    except OSError:  # the system has no IPv6
        holder = socket.socket(socket.AF_INET)
        everywhere = "0.0.0.0"
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        if holder.family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((everywhere, port))
    except OSError:
        holder.close()
        raise
    return holder


def _used_up(environ: Mapping[str, str], ports: range, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"HERRING_PORTS={environ['HERRING_PORTS'].strip()} is used up: none of its {len(ports)} "
        f"ports is free on {where}; a host needs one for each of its workers and servers, and "
        "three more for rank 0: set a wider range, or end the processes that listen there"
    )


def _look_up(host: str) -> str:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # IPv4 addresses come first. Otherwise a name with both kinds would depend on each host's
    # resolver settings.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _unknown(host: str, variable: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{variable} names the host {host!r}, which cannot be resolved: {reason}"
    )
