"""Compares the cost models with numbers computed by hand, and with each other."""

from __future__ import annotations

import pytest

from herring import models
from herring.errors import InvalidArgumentError

M, B = 25e6, 25e6  # M divided by B is one second.


def test_equations_of_the_study() -> None:
    # The study's example has eight servers: seven workers and one parameter server.
    assert models.parameter_server_time(8, M, B, 0.001) == pytest.approx(14.014)
    assert models.tree_time(8, M, B, 0.001) == pytest.approx(6.006)
    assert models.ring_time(8, M, B, 0.001) == pytest.approx(1.75 + 0.014)
    assert models.butterfly_time(8, M, B, 0.001) == pytest.approx(1.75 + 0.006)
    assert models.doubling_time(8, M, B, 0.001) == pytest.approx(3.0 + 0.003)
    # The study's testbed averages 53 MB over 16 servers at 6 GB/s and 2.5 us.
    assert models.butterfly_time(16, 53e6, 6e9, 2.5e-6) == pytest.approx(0.016582, rel=1e-3)


def test_other_numbers_than_powers_of_two() -> None:
    assert models.tree_time(5, M, B) == pytest.approx(6.0)
    assert models.butterfly_time(6, M, B) == pytest.approx(1.5 + 2.0)
    assert models.butterfly_time(3, M, B, 0.001) == pytest.approx(1.0 + 2.0 + 0.004)
    assert models.doubling_time(6, M, B, 0.001) == pytest.approx(2.0 + 2.0 + 0.004)


def test_sums_take_time_too() -> None:
    # The paper's example: 2 * 63 * 100 / 64 MB cross a link when 64 nodes average 100 MB.
    assert models.wire("butterfly", 64, 100e6).busiest_bytes == pytest.approx(196.875e6)
    moved = models.butterfly_time(64, 100e6, 1.0)
    assert moved == pytest.approx(196.875e6)
    assert models.butterfly_time(64, 100e6, 1.0, byte_sum=1.0) == pytest.approx(1.5 * moved)
    assert models.butterfly_time(6, M, B, byte_sum=2 / B) == pytest.approx(1.5 + 2.0 + 1.5 + 2.0)
    serial = models.serial_server_time(8, M, B, 0.001, byte_sum=1 / B)
    assert serial == pytest.approx(0.002 + 2.0 + 8.0)
    assert models.serial_server_time(8, M, B) == 2 * models.herring_time(8, M, B)


def test_herring() -> None:
    assert models.herring_time(8, M, B, 0.001, 0.002) == pytest.approx(1.010)
    assert models.time("herring", 8, M, B) == pytest.approx(1.0)
    # The time falls from a ring's, without dedicated servers, to M/B, with one for each node.
    for n in (2, 3, 8, 16):
        assert models.colocated_time(n, 0, M, B) == pytest.approx(models.ring_time(n, M, B))
        assert models.colocated_time(n, n, M, B) == pytest.approx(1.0)
        assert models.colocated_time(n, 2 * n, M, B) == pytest.approx(1.0)
        times = [models.colocated_time(n, k, M, B) for k in range(n + 1)]
        assert times == sorted(times, reverse=True)
    assert models.colocated_time(8, 4, M, B) == pytest.approx(112 / 88)
    assert models.time("herring", 8, M, B, dedicated=4) == pytest.approx(112 / 88)


@pytest.mark.parametrize("algorithm", models.ALGORITHMS)
@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 7, 8, 16, 17])
def test_bytes_bound_the_time(algorithm: str, hosts: int) -> None:
    wire = models.wire(algorithm, hosts, M)
    seconds = models.time(algorithm, hosts, M, B)
    # The busiest link bounds the time. Links used in one direction at a time need up to twice it.
    one_way = algorithm in ("server", "tree") or (
        algorithm in ("butterfly", "doubling") and hosts & (hosts - 1) != 0
    )
    assert wire.busiest_bytes / B <= seconds * (1 + 1e-12)
    if not one_way:
        assert wire.busiest_bytes / B == pytest.approx(seconds)
    assert wire.total_bytes <= 2 * hosts * wire.busiest_bytes
    assert (wire.steps == 0) == (hosts == 1)


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_colocated_servers_keep_all_links_equally_busy(nodes: int) -> None:
    for dedicated in range(nodes):
        wire = models.wire("herring", nodes, M, dedicated)
        links = nodes + dedicated
        assert wire.total_bytes == pytest.approx(links * wire.busiest_bytes)


def test_nonsense_is_refused() -> None:
    names = "herring, server, tree, ring, butterfly, doubling"
    with pytest.raises(InvalidArgumentError, match=names):
        models.time("rings", 4, M, B)
    with pytest.raises(InvalidArgumentError, match="'x' does not exist"):
        models.wire("x", 4, M)
    with pytest.raises(InvalidArgumentError, match="hosts is 0"):
        models.ring_time(0, M, B)
    with pytest.raises(InvalidArgumentError, match="bandwidth is 0"):
        models.tree_time(4, M, 0)
    with pytest.raises(InvalidArgumentError, match="latency is -1"):
        models.butterfly_time(4, M, B, -1)
    with pytest.raises(InvalidArgumentError, match="byte_sum is -2 s"):
        models.serial_server_time(4, M, B, byte_sum=-2)
    with pytest.raises(InvalidArgumentError, match="dedicated is -1"):
        models.colocated_time(4, -1, M, B)
    with pytest.raises(InvalidArgumentError, match="segment_sum is -1"):
        models.herring_time(4, M, B, 0.0, -1)
