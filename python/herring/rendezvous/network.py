"""Finds this machine's interfaces and addresses, without a third-party package."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from herring.errors import ConfigurationError

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1


@dataclass(frozen=True)
class Interface:
    """A network interface."""

    name: str  # for example ``eth0``
    # The IPv4 address first, then IPv6 addresses that are not link-local.
    addresses: tuple[str, ...]
    up: bool  # whether the interface is up


def interfaces() -> list[Interface]:
    """Returns all interfaces in the kernel's order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            addresses = []
            reply = _query(sock, _SIOCGIFADDR, name)
            if reply:
                addresses.append(socket.inet_ntoa(reply[20:24]))
            addresses += _ipv6_addresses(name)
            flags = _query(sock, _SIOCGIFFLAGS, name)
            up = bool(flags and struct.unpack_from("H", flags, 16)[0] & _IFF_UP)
            found.append(Interface(name, tuple(addresses), up))
    return found


def is_local_address(address: str) -> bool:
    """Returns whether `address` (a literal) belongs to this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def is_reachable_address(address: str) -> bool:
    """Returns whether `address` is a literal of this machine that other hosts can use."""
    try:
        literal = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (literal.is_loopback or literal.is_link_local) and is_local_address(address)


def own_address(towards: str = "", interface: str = "") -> str:
    """Returns the address under which other hosts reach this host.

    Args:
        towards: A name or address of a host of the job. If it means this host, its address is the
            answer unless it is a loopback address (Debian maps a host's own name to 127.0.1.1).
        interface: A name or address that decides instead (``HERRING_INTERFACE``).

    Returns:
        An address literal; a loopback address only if there is no other address.

    Raises:
        ConfigurationError: `interface` is not an interface with an address on this machine, or this
            machine has no address at all.
    """
    if interface:
        return _address_of(interface)
    for target in (towards, "192.0.2.1", "2001:db8::1"):  # documentation ranges
        for family, literal in _resolve(target):
            source = _route_source(family, literal)
            if source and not ipaddress.ip_address(source.partition("%")[0]).is_loopback:
                return source
    for each in interfaces():
        for address in each.addresses:
            if each.up and not ipaddress.ip_address(address).is_loopback:
                return address
    return loopback_address()


def with_port(host: str, port: int) -> str:
    """Returns ``HOST:PORT``, or ``[HOST]:PORT`` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def loopback_address() -> str:
    """Returns the address under which processes of this machine reach each other.

    Returns:
        127.0.0.1 or ::1.

    Raises:
        ConfigurationError: The loopback interface is down, as in a new network namespace, or has
            no address.
    """
    found = [
        address
        for each in interfaces()
        for address in each.addresses
        if each.up and ipaddress.ip_address(address).is_loopback
    ]
    # 127.0.0.1 comes first. Otherwise the order stays, with IPv4 before IPv6 in each interface.
    found.sort(key=lambda address: address != "127.0.0.1")
    if not found:
        raise ConfigurationError(
            "processes of this machine cannot reach each other: its loopback interface is down or "
            "has neither 127.0.0.1 nor ::1 (in a network namespace: ip link set lo up)"
        )
    return found[0]


def _address_of(interface: str) -> str:
    known = interfaces()
    for each in known:
        if interface == each.name and each.addresses:
            return each.addresses[0]
        if interface in each.addresses:
            return interface
    if _is_literal(interface) and is_local_address(interface):
        return interface
    names = ", ".join(each.name for each in known if each.addresses)
    raise ConfigurationError(
        f"HERRING_INTERFACE={interface} is not valid: allowed are the interfaces of this machine "
        f"that have an address ({names}), or one of their addresses"
    )


def _is_literal(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _resolve(host: str) -> list[tuple[int, str]]:
    if not host:
        return []
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [(family, str(address[0])) for family, _, _, _, address in found]


def _route_source(family: int, literal: str) -> str:
    """Returns the local address that the kernel would use towards `literal`; sends no packet."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((literal, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def _query(sock: socket.socket, request: int, name: str) -> bytes | None:
    try:
        return fcntl.ioctl(sock, request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None


def _ipv6_addresses(name: str) -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        raw, _, _, scope, _, owner = line.split()
        if owner == name and scope != "20":  # link-local addresses work only with a scope
            found.append(str(ipaddress.IPv6Address(bytes.fromhex(raw))))
    return found
