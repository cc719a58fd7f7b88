"""Tests the torch.distributed backend "herring" in real jobs: every case of `backend_cases`."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import warm

pytest.importorskip("torch")

import torch.distributed as dist

from backend_cases import CASES
from batches import herring_run, outcomes
from jobs import expect_success, program, run_job

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
STARTS = {
    "torchrun": [*TORCHRUN, "-m", "backend_cases", "--init", "env://"],
    "two-nodes": [
        *herring_run("-n", "4", "--nodes", "2"),
        *("-m", "backend_cases", "--init", "herring://"),
    ],
}
# Cases whose path through the core depends on the layout of ranks.
ACROSS_NODES = [
    "forked_children",
    "every_front",
    "sub_groups",
    "messages",
    "stock_ddp",
    "hooks_that_start_collectives_late",
    "disagreements_are_errors",
    "elements_that_share_memory_are_refused_before",
    "every_operator",
    "futures_wait_for_futures",
    "once_more",
]
# Cases that call what PyTorch has from 2.13 on, or repeat what its older functions refuse.
FOR_NEWER = (
    [] if hasattr(dist, "all_gather_single") else ["every_front", "every_operator", "sub_groups"]
)


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    cases = list(CASES) if layout == "torchrun" else ACROSS_NODES
    cases = [case for case in cases if case not in FOR_NEWER]
    return outcomes(STARTS[layout], cases, OMP_NUM_THREADS="1")


@pytest.mark.parametrize(
    ("layout", "case"),
    [("torchrun", case) for case in CASES] + [("two-nodes", case) for case in ACROSS_NODES],
)
def test_case(layout: str, case: str) -> None:
    if case in FOR_NEWER:
        pytest.skip("it calls functions that this version of PyTorch lacks")
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)


def test_stores_and_deaths(tmp_path: Path) -> None:
    job = run_job(["-n", "2", "--keep-going"], program("backend_stores"), FOLDER=str(tmp_path))
    assert "survived" in job.stdout, job.stdout[-6000:]


def test_who_leaves_long_before_the_others_is_no_failure(tmp_path: Path) -> None:
    job = run_job(
        ["-n", "3", "--nodes", "2"],
        program("backend_leaves_first"),
        HERRING_FLIGHT_FOLDER=str(tmp_path),
    )
    assert expect_success(job).count("left") == 3
    assert not list(tmp_path.iterdir()), job.stdout


@pytest.mark.parametrize("hook", ["", "hook"])
def test_death_in_stock_ddp(hook: str) -> None:
    job = run_job(["-n", "2", "--keep-going"], program("backend_ddp_death"), HOOK=hook)
    assert "survived" in job.stdout, job.stdout[-6000:]


SCRIPT = """
    import os, sys
    import torch, torch.distributed as dist

    assert dist.get_backend() == "herring" and sys.argv[1:] == ["--lr", "1"], sys.argv
    place = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    assert place == {"RANK": dist.get_rank(), "WORLD_SIZE": 2, "LOCAL_RANK": 0}, place
    assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"]) > 0
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"total {total.item():g}", flush=True)
    sys.exit(int(os.environ["STATUS"]))
"""


@pytest.mark.parametrize("status", [0, 3])
def test_script_in_a_group(tmp_path: Path, status: int) -> None:
    """`python -m herring.torch` sets torchrun's variables under every launcher."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    job = warm.run(
        [*herring_run("-n", "2", "--nodes", "2"), "-m", "herring.torch", str(path), "--lr", "1"],
        env={**os.environ, "STATUS": str(status)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == status and job.stdout.count("total 2") == 2, job.stdout[-4000:]


@pytest.mark.parametrize("arguments", ["()", "('nccl',)", "('gloo', 'env://')", "('herring',)"])
def test_script_begins_its_own_group(tmp_path: Path, arguments: str) -> None:
    """Under `python -m herring.torch`, a script that begins a group gets the existing group."""
    job = warm.run(
        [*herring_run("-n", "2"), "-m", "herring.torch", *program("backend_own_group")],
        env={**os.environ, "ARGUMENTS": arguments, "FOLDER": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == 0 and job.stdout.count("total 2") == 2, job.stdout[-4000:]
    said = job.stdout.count("goes on with Herring's group")
    assert said == (1 if "nccl" in arguments or "gloo" in arguments else 0), job.stdout


def test_variables_of_torchrun_beside_servers(tmp_path: Path) -> None:
    layout = ["-n", "2", "--nodes", "2", "--servers", "2"]
    job = run_job(layout, program("backend_variables"), FOLDER=str(tmp_path))
    assert job.returncode == 0 and job.stdout.count("well") == 2, job.stdout[-4000:]


def test_group_beside_gloo(tmp_path: Path) -> None:
    job = run_job(["-n", "2"], program("backend_beside_gloo"), FOLDER=str(tmp_path))
    assert job.returncode == 0 and job.stdout.count("well") == 2, job.stdout[-4000:]


def test_script_is_missing() -> None:
    job = warm.run(
        [sys.executable, "-m", "herring.torch"], stderr=subprocess.PIPE, text=True, timeout=600
    )
    assert job.returncode == 2 and "usage: python -m herring.torch" in job.stderr


def test_entry_point_loads_nothing() -> None:
    script = "import sys, herring.autoload as a; assert 'numpy' not in sys.modules; "
    script += "assert 'torch' not in sys.modules; sys.modules['torch'] = None; a.register()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


def test_example() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "ddp_backend.py"
    job = warm.run(
        [*TORCHRUN[:-1], "2", str(example)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", job.stdout)]
    assert job.returncode == 0 and len(losses) == 5, job.stdout
    assert losses[-1] < 0.2 * losses[0], losses


def test_whoever_debugs_may_take_longer_than_the_time_out_of_the_group() -> None:
    """Nothing is typed before the other rank has waited for longer than that."""
    code = """
import herring.torch, os, torch, torch.distributed as dist
from datetime import timedelta
rank = int(os.environ["RANK"])  # ranks start when they can: the store waits for longer than groups
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*where, 2, rank == 0, timedelta(seconds=100))
limit = timedelta(seconds=2)
dist.init_process_group("herring", store=store, rank=rank, world_size=2, timeout=limit)
part = dist.new_group([0, 1], timeout=limit)
dist.breakpoint(rank=1)
total = torch.ones(2)
dist.all_reduce(total, group=part)
print("sum", total.tolist())
"""
    process = warm.Popen(
        [*herring_run("-n", "2", "--stdin", "1", seconds=100), "-c", code],
        env={**os.environ, "HERRING_WARN_AFTER": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = b""
    for line in process.stdout:
        said += line
        if b"has waited" in line and not process.stdin.closed:
            process.stdin.write(b"c\n")
            process.stdin.close()
    assert process.wait() == 0, said
    assert said.count(b"sum [2.0, 2.0]") == 2
    assert b"Set timeout is now only supported" not in said
