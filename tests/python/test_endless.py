"""Huge and infinite timeouts: no function that accepts them times out at once."""

from __future__ import annotations

import pytest

from jobs import expect_success, program, run_job


def test_waits_and_operations() -> None:
    job = run_job(["-n", "2"], program("endless_waits"))
    expect_success(job)


def test_partial_and_planned_rounds() -> None:
    job = run_job(["-n", "2"], program("endless_rounds"))
    expect_success(job)


def test_torch_distributed() -> None:
    pytest.importorskip("torch.distributed")
    job = run_job(
        ["-n", "2"],
        """
import datetime, torch, torch.distributed as dist
import herring.torch
herring.init()
import threading
endless = datetime.timedelta.max
dist.init_process_group("herring", init_method="herring://", timeout=datetime.timedelta(days=10**6))
for limit in (endless, datetime.timedelta(days=106752), datetime.timedelta(days=10**6)):
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(limit)
    assert tensor[0] == 2
dist.destroy_process_group()
""",
    )
    expect_success(job)
