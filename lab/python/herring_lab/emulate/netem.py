"""Makes strict links with the kernel's netem, if the kernel has it.

A netem with a rate serializes packets like a real link. A second netem, behind an ifb device at the
switch's end of every host's link, has the delay and loss, so that packets under way take no room in
a queue::

    eth0 [netem rate] ---- pN ingress -> ifbN [netem delay, loss] -> bridge -> [netem rate] pM

This has three limits: queues count packets of the MTU's size, jitter would let packets overtake
each other, and all paths must be equal. `herring_lab.emulate.strict` does not have these limits.
"""

from __future__ import annotations

import math
import subprocess

from herring_lab.emulate.namespaces import run_batch
from herring_lab.emulate.strict import Path

_UNDER_WAY = 1_000_000  # packets under way; large enough to be no limit


def available(namespace: str) -> bool:
    """Returns whether this kernel has netem and ifb, by trying them in a namespace."""
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
    """Returns the qdisc of one direction of a link: its rate, and a queue of `queue_seconds`."""
    packets = 1 + math.ceil(queue_seconds * rate_bits / 8 / (mtu + 14))
    return ["netem", "rate", f"{int(rate_bits)}bit", "limit", str(packets)]


def path_arguments(path: Path) -> list[str]:
    """Returns the qdisc behind a host's link, which has the delay and loss."""
    arguments = ["netem", "delay", f"{path.delay * 1e6:.3f}us"]
    if path.loss > 0:
        arguments += ["loss", f"{100 * path.loss:.6f}%"]
    return [*arguments, "limit", str(_UNDER_WAY)]


def build_paths(namespace: str, hosts: int, path: Path) -> None:
    """Puts an ifb device with a path's delay and loss behind each host's link.

    Args:
      namespace: the namespace of the switch.
      hosts: the number of hosts; the port of host N is ``pN``.
      path: the path between any two hosts.
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
    """Sets another delay and loss on the ifb devices."""
    words = " ".join(path_arguments(path))
    commands = [f"qdisc replace dev ifb{host} root {words}" for host in range(hosts)]
    run_batch(["tc", "-n", namespace, "-batch", "-"], commands)
