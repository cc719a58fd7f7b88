"""The torch.distributed backend "herring" in real jobs: every case of `backend_cases`."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from backend_cases import CASES
from batches import herring_run, outcomes
from jobs import run_job

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
STARTS = {
    "torchrun": [*TORCHRUN, "-m", "backend_cases", "--init", "env://"],
    "two-nodes": [
        *herring_run("-n", "4", "--nodes", "2", seconds=160),
        *("-m", "backend_cases", "--init", "herring://"),
    ],
}
# Those whose way through the core depends on where ranks are.
ACROSS_NODES = ["every_front", "sub_groups", "messages", "stock_ddp", "once_more"]


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    cases = list(CASES) if layout == "torchrun" else ACROSS_NODES
    return outcomes(STARTS[layout], cases, seconds=170, OMP_NUM_THREADS="1")


@pytest.mark.parametrize(
    ("layout", "case"),
    [("torchrun", case) for case in CASES] + [("two-nodes", case) for case in ACROSS_NODES],
)
@pytest.mark.timeout(400)
def test_case(layout: str, case: str) -> None:
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)


STORES = """
    import threading
    import torch, torch.distributed as dist

    # Known without an import of herring.torch, where the package is installed.
    import herring.autoload
    herring.autoload.register()

    rank, size = (int(os.environ.pop(f"HERRING_{name}")) for name in ("RANK", "SIZE"))
    for name in [name for name in os.environ if name.startswith("HERRING_")]:
        del os.environ[name]  # all that is left is what init_process_group is given
    directory = os.environ["FOLDER"]
    for turn, url in enumerate((f"file://{directory}/a", f"file://{directory}/b")):
        dist.init_process_group("herring", init_method=url, rank=rank, world_size=size)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 3
        port = torch.zeros(1, dtype=torch.int64)
        if turn == 1:
            if rank == 0:
                store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
                port.fill_(store.port)
            dist.broadcast(port, 0)
        dist.destroy_process_group()
    if rank != 0:
        store = dist.TCPStore("127.0.0.1", int(port), None, False, wait_for_workers=False)
    for _ in range(2):  # the same store, twice
        dist.init_process_group(
            "herring", store=store, rank=rank, world_size=size, pg_options={"flows": 2}
        )
        dist.barrier()
        dist.destroy_process_group()
    raises(RuntimeError, "HashStore", dist.init_process_group, "herring",
           store=dist.HashStore(), rank=rank, world_size=size)
    raises(ValueError, "pg_options", dist.init_process_group, "herring", pg_options=3,
           store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group("herring", store=dist.HashStore(), rank=0, world_size=1)
    gathered = [torch.zeros(2)]
    dist.all_gather(gathered, torch.ones(2))
    assert gathered[0].tolist() == [1.0, 1.0]
    thread = threading.Thread(target=lambda: dist.all_reduce(gathered[0]))
    thread.start(); thread.join()
    dist.destroy_process_group()

    # A death: those who wait learn of it, in Python and in futures.
    dist.init_process_group("herring", store=dist.PrefixStore("last", store), rank=rank,
                            world_size=size)
    alone = dist.new_group([0])
    dist.barrier()
    if rank == 1:
        os._exit(0)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    raises(RuntimeError, "rank 1", work.get_future().wait)
    raises(herring.PeerLostError, "rank 1", work.wait)
    raises(herring.PeerLostError, "rank 1", dist.all_reduce, torch.ones(3))
    dist.destroy_process_group()
    print("survived")
"""


@pytest.mark.timeout(100)
def test_stores_and_deaths(tmp_path: Path) -> None:
    job = run_job(["-n", "2", "--keep-going"], textwrap.dedent(STORES), 80, FOLDER=str(tmp_path))
    assert "survived" in job.stdout, job.stdout[-6000:]


@pytest.mark.timeout(60)
def test_entry_point_loads_nothing() -> None:
    script = "import sys, herring.autoload as a; assert 'numpy' not in sys.modules; "
    script += "assert 'torch' not in sys.modules; sys.modules['torch'] = None; a.register()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
