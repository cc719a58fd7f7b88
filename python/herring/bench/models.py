"""Cost models: the shortest time that an all-reduce can take, and the bytes it sends.

All functions are pure. They depend on the number of hosts, the bytes of the array and the network.
Sources:

* study: F. Iandola, *Distributed deep neural network training: A measurement study*, section 4,
* paper: *Herring: Rethinking the Parameter Server at Scale for the Cloud* (Thangakrishnan
  et al., SC20, 2020).

`time` and `wire` take the name of an algorithm, as ``allreduce(algorithm=)`` does. The tests in
``tests/unit/collective`` check that the schedules send what `wire` says.

Args:
  size: n, the bytes of the array.
  bandwidth: BW, bytes per second and per direction of a host's link.
  latency: Seconds that a message without content takes one way.
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
    "doubling_time",
    "herring_time",
    "lateness",
    "parameter_server_time",
    "ring_time",
    "serial_server_time",
    "shares",
    "time",
    "tree_time",
    "wire",
]

#: The values that ``allreduce(algorithm=)`` accepts.
ALGORITHMS = ("herring", "server", "tree", "ring", "butterfly", "doubling")


def _check(
    hosts: int, size: float, bandwidth: float, latency: float = 0.0, byte_sum: float = 0.0
) -> None:
    if hosts < 1:
        raise InvalidArgumentError(f"hosts is {hosts}; there must be at least 1")
    if size < 0:
        raise InvalidArgumentError(f"size is {size} bytes; it must not be negative")
    if not bandwidth > 0:
        raise InvalidArgumentError(f"bandwidth is {bandwidth} bytes/s; it must be more than 0")
    if latency < 0:
        raise InvalidArgumentError(f"latency is {latency} s; it must not be negative")
    if byte_sum < 0:
        raise InvalidArgumentError(f"byte_sum is {byte_sum} s; it must not be negative")


def _floor_log2(n: int) -> int:
    return n.bit_length() - 1


def _ceil_log2(n: int) -> int:
    return (n - 1).bit_length()


def parameter_server_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Returns the time with one parameter server that serves workers in turn (study, equation 1).

    The time is ``2 p n / BW + 2 p latency`` for p workers, not counting the server. With
    ``algorithm="server"`` rank 0 is both the server and a worker, so ``p = hosts - 1``.

    Args:
      hosts: The number of ranks including the server, at least 1.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency)
    workers = hosts - 1
    return 2 * workers * size / bandwidth + 2 * workers * latency


def tree_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Returns the time of a binomial tree that works level by level (study, equation 2).

    The time is ``2 lg(p) n / BW + 2 lg(p) latency``. If p is not a power of two, lg(p) is rounded
    up to the number of levels. Herring's tree forwards a part of the array while the rest is
    arriving, so it may be faster.

    Args:
      hosts: p, the number of ranks, at least 1.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency)
    levels = _ceil_log2(hosts)
    return 2 * levels * size / bandwidth + 2 * levels * latency


def ring_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Returns the time of a ring (study, equation 3).

    The time is ``2 (p-1) n / (p BW) + 2 (p-1) latency``.

    Args:
      hosts: p, the number of ranks, at least 1.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency)
    return 2 * (hosts - 1) * size / (hosts * bandwidth) + 2 * (hosts - 1) * latency


def butterfly_time(
    hosts: int, size: float, bandwidth: float, latency: float = 0.0, byte_sum: float = 0.0
) -> float:
    """Returns the time of recursive halving and doubling (study, equation 4; Rabenseifner's).

    If p is a power of two, the time is ``2 (p-1) n / (p BW) + 2 lg(p) latency``, and with sums
    (paper, section IV.A) ``(p-1) n gamma / p`` more. Otherwise let q be the largest power of two
    below p. The ranks beyond q first hand their arrays to neighbours and get the result last, which
    adds ``2 n / BW + 2 latency + n gamma`` to the time for q ranks.

    Args:
      hosts: p, the number of ranks, at least 1.
      byte_sum: gamma, seconds to add one byte to a sum.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency, byte_sum)
    levels = _floor_log2(hosts)
    power = 1 << levels
    part = (power - 1) * size / power
    seconds = 2 * part / bandwidth + 2 * levels * latency + part * byte_sum
    if power != hosts:
        seconds += 2 * size / bandwidth + 2 * latency + size * byte_sum
    return seconds


def serial_server_time(
    workers: int, size: float, bandwidth: float, latency: float = 0.0, byte_sum: float = 0.0
) -> float:
    """Returns the time with servers that receive, sum and answer one after the other (paper, IV.A).

    The time is ``2 alpha + 2 n beta + n p gamma``, for as many server hosts as workers. Herring
    does the three at once: see `herring_time`.

    Args:
      workers: p, the number of workers, at least 1.
      byte_sum: gamma, seconds to add one byte to a sum.

    Returns:
      Seconds.
    """
    _check(workers, size, bandwidth, latency, byte_sum)
    return 2 * latency + 2 * size / bandwidth + size * workers * byte_sum


def doubling_time(hosts: int, size: float, bandwidth: float, latency: float = 0.0) -> float:
    """Returns the time of recursive doubling, in which ranks exchange whole arrays.

    If p is a power of two, the time is ``lg(p) n / BW + lg(p) latency``. Otherwise let q be the
    largest power of two below p. The ranks beyond q first hand their arrays to neighbours and get
    the result last, which adds ``2 n / BW + 2 latency`` to the time for q ranks.

    Args:
      hosts: p, the number of ranks, at least 1.

    Returns:
      Seconds.
    """
    _check(hosts, size, bandwidth, latency)
    levels = _floor_log2(hosts)
    steps = levels if 1 << levels == hosts else levels + 2
    return steps * (size / bandwidth + latency)


def herring_time(
    hosts: int,
    size: float,
    bandwidth: float,
    latency: float = 0.0,
    segment_sum: float = 0.0,
) -> float:
    """Returns Herring's time with at least as many server hosts as nodes (paper).

    The time is ``p alpha + gamma + n beta``. Every worker sends its bytes once and receives them
    once, at the same time. The first result waits for the first segment of all p workers; later
    sums overlap with sending.

    Args:
      hosts: p, the number of nodes with workers; servers are not counted.
      bandwidth: 1 / beta, bytes/s per direction of a link.
      latency: alpha, seconds to send one segment to a server.
      segment_sum: gamma, seconds to add one segment to the sum.

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
    """Returns Herring's time with k dedicated server hosts for n nodes.

    The time is ``2 n (n-1) M / ((n^2 + k n - 2 k) B)``. With fewer than n dedicated servers each
    node also has a colocated server, and the bytes are divided so that all links are equally busy.
    The time falls from ``2 (n-1)/n M/B`` of a ring (k = 0) to ``M/B`` (k = n). More than n servers
    change nothing.

    Args:
      nodes: n, at least 1.
      dedicated: k, at least 0.
      size: M, the bytes of the array.
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
    """Returns how long an average waits for its slowest host: ``lg(p) per_doubling``.

    A sum is complete when the last contribution has arrived. Suppose that the delays of p hosts
    have a distribution with an exponential tail of mean s. Then the largest delay grows by s ln 2
    each time p doubles (extreme value theory: E. J. Gumbel, *Statistics of Extremes*, 1958). A
    single host does not wait.

    Args:
      hosts: p, at least 1.
      per_doubling: Extra delay of the slowest host, in seconds, each time the number of hosts
        doubles.

    Returns:
      Seconds.
    """
    _check(hosts, 0, 1.0, per_doubling)
    return per_doubling * math.log2(hosts)


def shares(nodes: int, dedicated: int) -> tuple[float, float]:
    """Returns the shares of the bytes of a dedicated server and of a colocated server.

    The shares are ``2 (n-1) / (n^2 + k n - 2 k)`` and ``(n-k) / (n^2 + k n - 2 k)``, so that all
    links are equally busy. With at least as many dedicated servers as nodes, the dedicated servers
    have equal shares and there are no colocated servers.

    Args:
      nodes: n, at least 2.
      dedicated: k, at least 0.

    Returns:
      Two numbers from 0 to 1; 0 if there are no servers of that kind.
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
    """Returns the time that the model of an algorithm predicts.

    Args:
      algorithm: One of `ALGORITHMS`.
      hosts: The number of hosts, each with one worker.
      bandwidth: Bytes/s per direction of a link.
      dedicated: The number of hosts with dedicated servers, for "herring" only. None means as many
        as `hosts`.

    Returns:
      Seconds.

    Raises:
      InvalidArgumentError: The algorithm does not exist, or a number is out of range.
    """
    models = {
        "server": parameter_server_time,
        "tree": tree_time,
        "ring": ring_time,
        "butterfly": butterfly_time,
        "doubling": doubling_time,
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
    """The messages and bytes of an all-reduce on the wire, without headers."""

    # Messages that follow one another on the busiest rank. Sending and receiving at the same time
    # counts as one. Herring has 2 steps: to the servers and back.
    steps: int
    total_bytes: float  # bytes sent by all hosts together
    busiest_bytes: float  # bytes on the busiest host's link, in the direction that carries more


def wire(algorithm: str, hosts: int, size: float, dedicated: int | None = None) -> Wire:
    """Returns what an algorithm puts on the wire, as if all blocks divided evenly.

    Args:
      algorithm: One of `ALGORITHMS`.
      hosts: The number of hosts, each with one worker.
      dedicated: The number of hosts with dedicated servers, for "herring" only. None means as many
        as `hosts`.

    Returns:
      Steps and bytes.

    Raises:
      InvalidArgumentError: The algorithm does not exist, or a number is out of range.
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
    if algorithm in ("butterfly", "doubling"):
        levels = _floor_log2(p)
        q = 1 << levels
        extra = p - q
        halves = algorithm == "butterfly"
        exchange = 2 * (q - 1) * size / q if halves else levels * size
        return Wire(
            (2 if halves else 1) * levels + (2 if extra else 0),
            q * exchange + 2 * extra * size,
            exchange + (size if extra else 0),
        )
    k = p if dedicated is None else dedicated
    _, share = shares(p, k)
    # A node reaches its own colocated server without the wire; that server's link carries the bytes
    # of the other nodes. With more than p dedicated servers, the workers' links are the busiest.
    return Wire(2, 2 * p * size * (1 - share), size * (1 + (p - 2) * share))


def _check_name(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise InvalidArgumentError(
            f"algorithm {algorithm!r} does not exist; use one of {', '.join(ALGORITHMS)}"
        )
