"""Tests orders, numbers of calls, streams and sizes that the author of a program may not expect."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job

FOUR_NODES = ["-n", "4", "--nodes", "4", "--servers", "1"]

OTHER_ORDERS = """
import random
herring.init()
rank, size = herring.rank(), herring.size()
for attempt, (elements, count) in enumerate(((20_000, 400), (20_000, 400), (200, 300))):
    arrays = [np.full(elements, rank + i, np.float32) for i in range(count)]
    order = list(range(count))
    random.Random(rank + 77 * attempt).shuffle(order)
    handles = [herring.allreduce_async(arrays[i], "sum", name=f"{attempt}.{i}") for i in order]
    for handle in handles:
        handle.wait()
    for i, array in enumerate(arrays):
        assert (array == size * i + size * (size - 1) / 2).all(), (i, array[0])
"""


@pytest.mark.parametrize("proxies", ["1", "2", "4"])
@pytest.mark.parametrize(
    "layout",
    [FOUR_NODES, ["-n", "4", "--nodes", "2", "--servers", "2"], ["-n", "3", "--nodes", "3"]],
    ids=["one-server", "two-servers", "colocated"],
)
def test_any_order_of_submission_on_every_rank(layout: list[str], proxies: str) -> None:
    expect_success(run_job(layout, OTHER_ORDERS, HERRING_PROXIES=proxies, HERRING_TIMEOUT="600"))


@pytest.mark.parametrize("proxies", ["1", "2", "4"])
def test_orders_differ_between_threads_too(proxies: str) -> None:
    script = program("orders_of_threads")
    expect_success(run_job(FOUR_NODES, script, HERRING_PROXIES=proxies, HERRING_TIMEOUT="600"))


@pytest.mark.parametrize("layout", [["-n", "3"], ["-n", "3", "--nodes", "3", "--servers", "1"]])
@pytest.mark.parametrize(
    "script", [program("late_calls"), program("refused_calls")], ids=["late", "refused"]
)
def test_every_rank_gets_the_error_of_its_own_call(layout: list[str], script: list[str]) -> None:
    expect_success(run_job(layout, script, HERRING_TIMEOUT="600", HERRING_PROXIES="2"))


@pytest.mark.parametrize("credit", ["0", "1MiB", "8192"])
def test_many_plans_at_once_keep_to_the_credit(credit: str) -> None:
    script = program("many_plans")
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    expect_success(run_job(layout, script, HERRING_CREDIT=credit, HERRING_TIMEOUT="600"))


def test_the_largest_frames_and_small_operations_that_settings_allow() -> None:
    script = """
    herring.init()
    rank, size = herring.rank(), herring.size()
    elements = 15_000_000
    array = np.full(elements, rank, np.float32)
    assert (herring.allreduce(array, "sum") == 1).all()
    everything_to_one = [elements, 0] if rank == 0 else [elements, 0]
    got = herring.alltoall(np.full(elements, rank, np.float32), everything_to_one)
    assert len(got) == (2 * elements if rank == 0 else 0)
    gathered = herring.allgather(array[:6_000_000])
    assert len(gathered) == 12_000_000 and (gathered == 1).all()
    """
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    large = {"HERRING_SMALL_BYTES": "64MiB", "HERRING_FRAME_MAX": "64MiB"}
    for segment in ("8192", "1MiB"):
        expect_success(
            run_job(layout, script, HERRING_SEGMENT_BYTES=segment, HERRING_CREDIT="128MiB", **large)
        )
