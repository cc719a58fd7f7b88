"""Strict links by the kernel's own means, where it has netem: what to tell ``tc``.

A netem with a rate serializes like a real link; a second one, behind an ifb device at the switch's
end of every host's link, holds delay and loss, so that packets under way take no room in a queue::

    eth0 [netem rate] ---- pN ingress -> ifbN [netem delay, loss] -> bridge -> [netem rate] pM

Queues count packets of the MTU's size, jitter would let packets overtake each other, and one path
cannot differ from another: whoever needs these takes `herring_lab.emulate.strict`.
"""

from __future__ import annotations

import math
import subprocess

from herring_lab.emulate.namespaces import run_batch
from herring_lab.emulate.strict import Path

__all__ = ["available", "build_paths", "path_arguments", "rate_arguments", "shape_paths"]

_UNDER_WAY = 1_000_000  # packets: no limit


def available(namespace: str) -> bool:
    """Whether this kernel has netem and ifb, tried in a namespace."""
    tries = (
        ["ip", "-n", namespace, "link", "add", "ifb-try", "type", "ifb"],
        ["tc", "-n", namespace, "qdisc", "add", "dev", "ifb-try", "root", "netem", "rate", "1gbit"],
    )
    done = [subprocess.run(argv, capture_output=True, check=False).returncode for argv in tries]
    if done[0] == 0:
        remove = ["ip", "-n", namespace, "link", "del", "ifb-try"]
        subprocess.run(remove, capture_output=True, check=False)
    return done == [0, 0]


def rate_arguments(rate_bits: float, queue_seconds: float, mtu: int) -> list[str]:
    """Returns the qdisc of one direction of a link: its rate, and a queue of so many seconds."""
    packets = 1 + math.ceil(queue_seconds * rate_bits / 8 / (mtu + 14))
    return ["netem", "rate", f"{int(rate_bits)}bit", "limit", str(packets)]


def path_arguments(path: Path) -> list[str]:
    """Returns the qdisc of what lies behind a host's link: delay and loss."""
    arguments = ["netem", "delay", f"{path.delay * 1e6:.3f}us"]
    if path.loss > 0:
        arguments += ["loss", f"{100 * path.loss:.6f}%"]
    return [*arguments, "limit", str(_UNDER_WAY)]


def build_paths(namespace: str, hosts: int, path: Path) -> None:
    """Puts an ifb device with a path's delay and loss behind each host's link.

    Args:
      namespace: of the switch.
      hosts: how many; host N's port is ``pN``.
      path: between any two.
    """
    for host in range(hosts):
        links = [f"link add ifb{host} type ifb", f"link set ifb{host} up"]
        run_batch(["ip", "-n", namespace, "-batch", "-"], links)
        rules = [
            f"qdisc add dev p{host} ingress",
            f"filter add dev p{host} parent ffff: protocol all u32 match u32 0 0 action mirred "
            f"egress redirect dev ifb{host}",
        ]
        run_batch(["tc", "-n", namespace, "-batch", "-"], rules)
    shape_paths(namespace, hosts, path)


def shape_paths(namespace: str, hosts: int, path: Path) -> None:
    """Gives these devices another path."""
    words = " ".join(path_arguments(path))
    commands = [f"qdisc replace dev ifb{host} root {words}" for host in range(hosts)]
    run_batch(["tc", "-n", namespace, "-batch", "-"], commands)
