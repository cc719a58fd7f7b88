"""Cost models: how long an all-reduce takes at best, and what it puts on the wire.

Pure functions of the number of hosts, the bytes of the array and the network. Units: bytes and
seconds; ``bandwidth`` in bytes per second and per direction of a host's link, ``latency`` in
seconds for a message without content, one way. Sources:

* study: F. Iandola, *Distributed deep neural network training: A measurement study*, section 4,
* paper: *Herring: Rethinking the Parameter Server at Scale for the Cloud* (Thangakrishnan
  et al., SC20, 2020).

`time` and `wire` take the name of an algorithm, as ``allreduce(algorithm=)`` does. That the
schedules send what `wire` says is tested where they are made (``tests/unit/collective``).
"""

from __future__ import annotations

import dataclasses
import math

from herring.errors import InvalidArgumentError

__all__ = [
    "ALGORITHMS",
    "Wire",
    "butterfly_time",
    "colocated_time",
    "herring_time",
    "lateness",
    "parameter_server_time",
    "ring_time",
    "shares",
    "time",
    "tree_time",
    "wire",
]

#: Values of ``allreduce(algorithm=)``.
ALGORITHMS = ("herring", "server", "tree", "ring", "butterfly")


def _check(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> None:
    if hosts < 1:
        raise InvalidArgumentError(f"hosts is {hosts}; there must be at least 1")
    if size < 0:
        raise InvalidArgumentError(f"size is {size} bytes; it must not be negative")
    if not bandwidth > 0:
        raise InvalidArgumentError(f"bandwidth is {bandwidth} bytes/s; it must be more than 0")
    if latency < 0:
        raise InvalidArgumentError(f"latency is {latency} s; it must not be negative")


def _floor_log2(n: int) -> int:
    return n.bit_length() - 1


def _ceil_log2(n: int) -> int:
    return (n - 1).bit_length()


def parameter_server_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """One parameter server: serves its workers one after the other (study, equation 1).

    ``2 p n / BW + 2 p latency`` for p workers, the server not counted. In ``algorithm="server"``
    rank 0 is the server and a worker at once, so that ``p = hosts - 1``.

    Args:
      hosts: all ranks, the server included; at least 1.
      size: n, bytes of the array.
      bandwidth: BW, bytes/s per direction of a link.
      latency: seconds.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency)
    workers = hosts - 1
    return 2 * workers * size / bandwidth + 2 * workers * latency


def tree_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Binomial tree, level by level (study, equation 2): ``2 lg(p) n / BW + 2 lg(p) latency``.

    For other numbers than powers of two lg is rounded up: so many levels the tree has. Herring's
    tree forwards a part of the array while the rest is arriving, and may be faster.

    Args and result as `parameter_server_time`.
    """
    _check(hosts, size, bandwidth, latency)
    levels = _ceil_log2(hosts)
    return 2 * levels * size / bandwidth + 2 * levels * latency


def ring_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Ring (study, equation 3): ``2 (p-1) n / (p BW) + 2 (p-1) latency``.

    Args and result as `parameter_server_time`.
    """
    _check(hosts, size, bandwidth, latency)
    return 2 * (hosts - 1) * size / (hosts * bandwidth) + 2 * (hosts - 1) * latency


def butterfly_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Recursive halving and doubling (study, equation 4).

    ``2 (p-1) n / (p BW) + 2 lg(p) latency`` where p is a power of two. Otherwise the ranks beyond
    the largest power of two q hand their arrays to neighbours first and get the result last, which
    adds ``2 n / BW + 2 latency`` to the time of q.

    Args and result as `parameter_server_time`.
    """
    _check(hosts, size, bandwidth, latency)
    levels = _floor_log2(hosts)
    power = 1 << levels
    seconds = 2 * (power - 1) * size / (power * bandwidth) + 2 * levels * latency
    if power != hosts:
        seconds += 2 * size / bandwidth + 2 * latency
    return seconds


def herring_time(
    hosts: int,
    size: float,
    bandwidth: float,
    latency: float = 0.0,
    segment_sum: float = 0.0,
) -> float:
    """Herring with at least as many server hosts as nodes: ``p alpha + gamma + n beta`` (paper).

    Every worker sends its bytes once and receives them once, at the same time. The first result
    waits for the first segment of all p workers; what is summed later overlaps with sending.

    Args:
      hosts: p, nodes with workers; servers are not counted.
      size: n, bytes of the array.
      bandwidth: 1 / beta, bytes/s per direction of a link.
      latency: alpha, seconds to send one segment to a server.
      segment_sum: gamma, seconds to add one segment to the others'.

    Returns:
      Seconds; 0 for a single host.
    """
    _check(hosts, size, bandwidth, latency)
    if segment_sum < 0:
        raise InvalidArgumentError(f"segment_sum is {segment_sum} s; it must not be negative")
    if hosts == 1:
        return 0.0
    return hosts * latency + segment_sum + size / bandwidth


def colocated_time(nodes: int, dedicated: int, size: float, bandwidth: float) -> float:
    """Herring with k dedicated server hosts for n nodes: ``2 n (n-1) M / ((n^2 + k n - 2 k) B)``.

    Below n dedicated servers each node has a colocated one besides, and the bytes are divided so
    that all links are equally busy. The formula goes from a ring's ``2 (n-1)/n M/B`` (k = 0) to
    ``M/B`` (k = n); more servers change nothing.

    Args:
      nodes: n, at least 1.
      dedicated: k, at least 0.
      size: M, bytes of the array.
      bandwidth: B, bytes/s per direction of a link.

    Returns:
      Seconds; 0 for a single node.
    """
    _check(nodes, size, bandwidth)
    if dedicated < 0:
        raise InvalidArgumentError(f"dedicated is {dedicated}; it must not be negative")
    if nodes == 1:
        return 0.0
    n, k = nodes, min(dedicated, nodes)
    return 2 * n * (n - 1) * size / ((n * n + k * n - 2 * k) * bandwidth)


def lateness(hosts: int, per_doubling: float) -> float:
    """How long an average waits for the slowest of its hosts: ``lg(p) per_doubling``.

    A sum is complete when the last contribution is there. Of p delays whose distribution has an
    exponential tail of mean s the largest grows by s ln 2 with each doubling of p (extreme value
    theory: E. J. Gumbel, *Statistics of Extremes*, 1958). A single host waits for nobody.

    Args:
      hosts: p, at least 1.
      per_doubling: seconds that the slowest of twice as many is behind more.

    Returns:
      Seconds.
    """
    _check(hosts, 0, 1.0, per_doubling)
    return per_doubling * math.log2(hosts)


def shares(nodes: int, dedicated: int) -> tuple[float, float]:
    """Parts of the bytes that a dedicated server has, and a colocated one (0: there are none).

    ``2 (n-1) / (n^2 + k n - 2 k)`` and ``(n-k) / (n^2 + k n - 2 k)``, so that all links are equally
    busy; with as many dedicated servers as nodes, or more, these share evenly.

    Args:
      nodes: n, at least 2.
      dedicated: k, at least 0.
    """
    if nodes < 2:
        raise InvalidArgumentError(f"nodes is {nodes}; there must be at least 2 to share between")
    if dedicated < 0:
        raise InvalidArgumentError(f"dedicated is {dedicated}; it must not be negative")
    n, k = nodes, dedicated
    if k >= n:
        return 1 / k, 0.0
    whole = n * n + k * n - 2 * k
    return (2 * (n - 1) / whole if k else 0.0), (n - k) / whole


def time(
    algorithm: str,
    hosts: int,
    size: float,
    bandwidth: float,
    latency: float = 0.0,
    dedicated: int | None = None,
) -> float:
    """The model of one of `ALGORITHMS`.

    Args:
      algorithm: as in `herring.allreduce`.
      hosts: hosts with a worker each.
      size: bytes of the array.
      bandwidth: bytes/s per direction of a link.
      latency: seconds.
      dedicated: for "herring": hosts with dedicated servers; None: as many as hosts.

    Returns:
      Seconds.

    Raises:
      InvalidArgumentError: there is no such algorithm, or a number makes no sense.
    """
    models = {
        "server": parameter_server_time,
        "tree": tree_time,
        "ring": ring_time,
        "butterfly": butterfly_time,
    }
    if algorithm in models:
        return models[algorithm](hosts, size, bandwidth, latency)
    _check_name(algorithm)
    if dedicated is None or dedicated >= hosts:
        return herring_time(hosts, size, bandwidth, latency)
    seconds = colocated_time(hosts, dedicated, size, bandwidth)
    return seconds + (hosts * latency if hosts > 1 else 0.0)


@dataclasses.dataclass(frozen=True)
class Wire:
    """What an all-reduce puts on the wire, headers not counted.

    Attributes:
      steps: messages that follow one another on the busiest rank (one that sends and receives at
        the same time counts once). Herring: 2, to the servers and back.
      total_bytes: sent by all hosts together.
      busiest_bytes: on the link of the host that sends or receives most, in its busier direction.
    """

    steps: int
    total_bytes: float
    busiest_bytes: float


def wire(algorithm: str, hosts: int, size: float, dedicated: int | None = None) -> Wire:
    """What one of `ALGORITHMS` puts on the wire; blocks are taken to divide evenly.

    Args:
      algorithm: as in `herring.allreduce`.
      hosts: hosts with a worker each.
      size: bytes of the array.
      dedicated: for "herring": hosts with dedicated servers; None: as many as hosts.

    Returns:
      Steps and bytes.

    Raises:
      InvalidArgumentError: there is no such algorithm, or a number makes no sense.
    """
    _check(hosts, size, 1.0)
    _check_name(algorithm)
    if hosts == 1:
        return Wire(0, 0, 0)
    p = hosts
    if algorithm == "server":
        return Wire(2 * (p - 1), 2 * (p - 1) * size, (p - 1) * size)
    if algorithm == "tree":
        levels = _ceil_log2(p)
        return Wire(2 * levels, 2 * (p - 1) * size, levels * size)
    if algorithm == "ring":
        return Wire(2 * (p - 1), 2 * (p - 1) * size, 2 * (p - 1) * size / p)
    if algorithm == "butterfly":
        levels = _floor_log2(p)
        q = 1 << levels
        extra = p - q
        exchange = 2 * (q - 1) * size / q
        return Wire(
            2 * levels + (2 if extra else 0),
            q * exchange + 2 * extra * size,
            exchange + (size if extra else 0),
        )
    k = p if dedicated is None else dedicated
    _, share = shares(p, k)
    # A colocated server's own node reaches it without the wire, and sends and receives the others'.
    # Beyond p dedicated servers their links are less busy than the workers'.
    return Wire(2, 2 * p * size * (1 - share), size * (1 + (p - 2) * share))


def _check_name(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise InvalidArgumentError(
            f"algorithm {algorithm!r} does not exist; use one of {', '.join(ALGORITHMS)}"
        )
