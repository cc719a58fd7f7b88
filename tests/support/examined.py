"""Makes up examinations of hosts that do not exist, for tests of the doctor."""

from __future__ import annotations

from typing import Any

from herring.doctor.judge import judge
from herring.doctor.records import Examination, Host, Link, Rank
from herring.doctor.report import lines

GIGABIT = 1e9


def facts(**changed: Any) -> dict[str, Any]:
    return {
        "versions": {"herring": "0.2.0", "protocol": "10", "python": "3.11.2"},
        "cores": {"all": 8, "quota": None},
        "numa": {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]},
        "interface": {"name": "eth0", "mtu": 9000, "speed": GIGABIT},
        "addresses": [],
        "sysctl": {"tcp_rmem": [4096, 131072, 6 << 20], "tcp_wmem": [4096, 16384, 4 << 20]},
        "limits": {"open_files": 1024, "open_files_hard": 1 << 20},
        "memory": {"shm": 1 << 30},
        "gpus": {},
        **changed,
    }


def healthy(count: int, per_host: int = 1) -> Examination:
    """Returns an examination of equal hosts h0, h1 ... without a fault."""
    hosts = []
    for index in range(count):
        ranks = [
            Rank(index * per_host + local, cores=frozenset(range(8))) for local in range(per_host)
        ]
        hosts.append(Host(f"h{index}", f"h{index}", f"10.0.0.{index + 1}", ranks, facts()))
    about = Examination(count * per_host, hosts, port_range="30000-30100")
    for one, other in about.pairs():
        about.links[one, other] = Link(
            ports={30000: ""},
            rtt=1e-4,
            offset=0.0,
            offset_error=5e-5,
            rate=0.94 * GIGABIT,
            probed=9000,
            largest=9000,
            sent=40,
        )
    return about


def of_host(about: Examination, host: int, to: bool = True, away: bool = True) -> list[Link]:
    return [
        link
        for (one, other), link in about.links.items()
        if (away and one == host) or (to and other == host)
    ]


def text_of(about: Examination, **options: Any) -> str:
    """Returns the whole report."""
    return "\n".join(line for line, _ in lines(about, judge(about), **options))
