"""Gradients that travel in 8 bits with a scale for each 32 numbers."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rounds_in_8_bits(layout: str) -> None:
    assert "are right" in expect_success(run_job(LAYOUTS[layout], program("packed_rounds")))


def test_servers_add_partial_sums_of_many_nodes() -> None:
    layout = ["-n", "9", "--nodes", "9", "--servers", "1"]
    assert "are right" in expect_success(run_job(layout, program("packed_rounds", "few")))


def test_segments_must_be_of_whole_packs() -> None:
    script = """
    herring.init()
    try:
        herring.PlannedReduction([(8, "float32")], wire_dtype="fp8")
    except herring.InvalidArgumentError as error:
        assert "HERRING_SEGMENT_BYTES is 1088" in str(error), error
        print("refused", flush=True)
    herring.barrier()
    herring.shutdown()
    """
    for nodes in ("1", "2"):  # on one node, too, though nothing travels there
        job = run_job(["-n", "2", "--nodes", nodes], script, HERRING_SEGMENT_BYTES="1088")
        assert expect_success(job).count("refused") == 2


def test_the_others_hear_of_a_death_while_a_planned_bucket_waits() -> None:
    pytest.importorskip("torch")
    job = run_job(["-n", "3", "--nodes", "3"], program("planned_buckets_lost"), grace=60)
    assert job.returncode != 0
    assert job.stdout.count("heard that rank 1 is lost") == 2, job.stdout


def test_the_death_of_servers_changes_no_bit() -> None:
    """Workers send again what they sent, although its place has other numbers by then."""
    digests = []
    for arguments in ([], ["kill"]):
        layout = ["-n", "3", "--nodes", "3", "--servers", "2"]
        script = program("failover_packed", *arguments)
        output = expect_success(run_job(layout, script, HERRING_FAILOVER="true"))
        assert output.count("is replaced by") == 3 * len(arguments), output
        digests.append(sorted(set(re.findall(r"rank \d: [0-9a-f]{64}", output))))
        assert len(digests[-1]) == 3, output
    assert digests[0] == digests[1]
