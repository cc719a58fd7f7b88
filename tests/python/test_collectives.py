"""Every collective, dtype and operator against NumPy, on every layout of workers and servers."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "script",
    [
        program("reduced_by_servers"),
        program("collectives"),
        program("rooted"),
        program("own_orders"),
    ],
    ids=["reductions", "others", "rooted", "order"],
)
def test_collective(layout: str, script: list[str]) -> None:
    expect_success(run_job(LAYOUTS[layout], script))


@pytest.mark.parametrize("proxies", ["1", "3"])
def test_what_was_lent_is_not_used_too_early(proxies: str) -> None:
    layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
    settings = {"HERRING_CREDIT": "512KiB", "HERRING_PROXIES": proxies, "HERRING_FLOWS": proxies}
    expect_success(run_job(layout, program("lent_frames"), **settings))


def digests(layout: list[str], **environment: str) -> list[str]:
    output = expect_success(run_job(layout, program("digests"), **environment))
    found = sorted(line.split("digest ")[1] for line in output.splitlines() if "digest " in line)
    assert len(found) == 5, output
    return found


@pytest.fixture(scope="module")
def eight_nodes() -> list[str]:
    """Returns the digests of 8 nodes with 2 servers and default settings."""
    return digests(["-n", "8", "--nodes", "8", "--servers", "2"])


@pytest.mark.parametrize(
    ("layout", "environment"),
    [
        pytest.param(["--nodes", "1"], {}, id="1 node"),
        pytest.param(["--nodes", "2"], {"HERRING_SIMD": "baseline"}, id="2 nodes, baseline SIMD"),
        pytest.param(
            ["--nodes", "4", "--servers", "2"],
            {"TEST_BUFFER_BYTES": "65536"},
            id="4 nodes, small buffers",
        ),
        pytest.param(
            ["--nodes", "8", "--servers", "1"], {"HERRING_PROXIES": "4"}, id="4 proxies, 1 server"
        ),
        pytest.param(
            ["--nodes", "8", "--servers", "2"],
            {"HERRING_FLOWS": "4", "TEST_BUFFER_BYTES": "400000"},
            id="4 flows, other buffers",
        ),
        pytest.param(
            ["--nodes", "8", "--servers", "8"],
            {"HERRING_CREDIT": "256KiB"},
            id="8 servers, larger credit",
        ),
    ],
)
def test_float32_bits_do_not_depend_on_layout_or_settings(
    eight_nodes: list[str], layout: list[str], environment: dict[str, str]
) -> None:
    assert digests(["-n", "8", *layout], **environment) == eight_nodes


@pytest.mark.parametrize(
    ("layout", "broadcast", "reduce_scatter"),
    [
        # Each of the two ranks of a node moves half of the data for both.
        (
            ["-n", "4", "--nodes", "2", "--servers", "1"],
            "0.5/0.5 0.5/0.5 0.0/0.5 0.0/0.5",
            "0.5/0.5",
        ),
        (["-n", "4"], "0.0/0.0 0.0/0.0 0.0/0.0 0.0/0.0", "0.0/0.0"),
    ],
    ids=["two-nodes", "one-node"],
)
def test_bytes_of_exchanges_cross_once(
    layout: list[str], broadcast: str, reduce_scatter: str
) -> None:
    output = expect_success(run_job(layout, program("bytes_of_exchanges")))
    moved = dict(re.findall(r"moved (\w+) (.*)", output))
    assert moved["broadcast"] == broadcast, output
    assert moved["reduce_scatter"] == " ".join([reduce_scatter] * 4), output
    if "--nodes" not in layout:
        assert moved["allgather"] == moved["alltoall"] == broadcast, output


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_rank_without_memory_for_what_others_send_ends_the_job_by_name(nodes: str) -> None:
    script = """
import resource
herring.init()
r = herring.rank()
sent = np.ones(16 << 20 if r == 0 else 0, np.float32)
herring.barrier()
if r == 1:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
words = "out of memory: the result of 'x' needs 67108864 bytes"
if r == 1:
    raises(herring.HerringError, words, herring.alltoall, sent, [0, 0], name="x")
else:
    text = "the job was aborted: rank 1 (127.0.0.1, pid "
    try:
        herring.alltoall(sent, [0, len(sent)], name="x")
    except herring.PeerLostError as error:
        assert text in str(error) and words in str(error), error
    else:
        raise AssertionError("the result was too large for rank 1")
"""
    expect_success(run_job(["-n", "2", "--nodes", nodes], script))
