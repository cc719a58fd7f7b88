"""The torch.distributed backend "herring" in real jobs: every case of `backend_cases`."""

from __future__ import annotations

import functools
import os
import re
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


DEATHS = """
    import herring.torch, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("herring", init_method="herring://")
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    if os.environ["HOOK"]:
        model.register_comm_hook(None, herring.torch.ddp_comm_hook)
    model(torch.ones(2, 300)).sum().backward()
    loss = model(torch.ones(2, 300)).sum()
    if dist.get_rank() == 1:
        os._exit(0)
    raises(RuntimeError, "rank 1", loss.backward)  # C++ reads the future here
    print("survived", flush=True)
"""


@pytest.mark.parametrize("hook", ["", "hook"])
@pytest.mark.timeout(100)
def test_death_in_stock_ddp(hook: str) -> None:
    job = run_job(["-n", "2", "--keep-going"], textwrap.dedent(DEATHS), 80, HOOK=hook)
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
@pytest.mark.timeout(100)
def test_script_in_a_group(tmp_path: Path, status: int) -> None:
    """`python -m herring.torch`: torchrun's variables are there under every launcher."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    job = subprocess.run(
        [*herring_run("-n", "2", "--nodes", "2"), "-m", "herring.torch", str(path), "--lr", "1"],
        env={**os.environ, "STATUS": str(status)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert job.returncode == status and job.stdout.count("total 2") == 2, job.stdout[-4000:]


OWN_GROUP = """
    import os, sys
    import torch
    import torch.distributed as dist
    from torch.distributed import init_process_group

    def total(tensor, **options):
        dist.all_reduce(tensor, **options)
        return tensor.item()

    rank = int(os.environ["RANK"])
    for arguments in ({"rank": 1 - rank}, {"world_size": 7}):
        try:
            init_process_group("gloo", **arguments)
        except RuntimeError as error:
            assert "python -m herring.torch" in str(error), error
        else:
            raise AssertionError(arguments)
    arguments = eval(os.environ["ARGUMENTS"])
    init_process_group(*arguments)
    assert dist.get_backend() == "herring" and dist.get_world_size() == 2
    assert total(torch.ones(1)) == 2
    try:
        init_process_group(*arguments)
    except ValueError as error:
        assert "twice" in str(error), error
    else:
        raise AssertionError("a second group")
    dist.destroy_process_group()
    url = "file://" + os.environ["FOLDER"] + "/store"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    assert dist.get_backend() == "herring"
    print(f"total {total(torch.ones(1)):g}", flush=True)
"""


@pytest.mark.parametrize("arguments", ["()", "('nccl',)", "('gloo', 'env://')", "('herring',)"])
@pytest.mark.timeout(100)
def test_script_begins_its_own_group(tmp_path: Path, arguments: str) -> None:
    """Under `python -m herring.torch` it goes on with the one that is there."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(OWN_GROUP))
    job = subprocess.run(
        [*herring_run("-n", "2"), "-m", "herring.torch", str(path)],
        env={**os.environ, "ARGUMENTS": arguments, "FOLDER": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert job.returncode == 0 and job.stdout.count("total 2") == 2, job.stdout[-4000:]
    said = job.stdout.count("goes on with Herring's group")
    assert said == (1 if "nccl" in arguments or "gloo" in arguments else 0), job.stdout


VARIABLES = """
    import torch, torch.distributed as dist

    place = {"RANK": os.environ["HERRING_RANK"], "WORLD_SIZE": os.environ["HERRING_SIZE"],
             "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(place)
    path = os.path.join(os.environ["FOLDER"], "port")
    if place["RANK"] == "0":
        import socket
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with open(path + ".new", "w") as file:
            file.write(str(port))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    os.environ["MASTER_PORT"] = open(path).read()
    dist.init_process_group("herring")
    tensor = torch.ones(300_000)
    dist.all_reduce(tensor)
    assert (tensor == 2).all()
    stats = herring.stats()
    assert [one["dedicated"] for one in stats["servers"]] == [True] * 2, stats
    dist.destroy_process_group()
    print("well", flush=True)
"""


@pytest.mark.timeout(100)
def test_variables_of_torchrun_beside_servers(tmp_path: Path) -> None:
    layout = ["-n", "2", "--nodes", "2", "--servers", "2"]
    job = run_job(layout, textwrap.dedent(VARIABLES), 80, FOLDER=str(tmp_path))
    assert job.returncode == 0 and job.stdout.count("well") == 2, job.stdout[-4000:]


BESIDE_GLOO = """
    import torch, torch.distributed as dist
    import herring.torch

    place = {"rank": int(os.environ["HERRING_RANK"]), "world_size": 2}
    dist.init_process_group("gloo", init_method="file://" + os.environ["FOLDER"] + "/s", **place)
    raises(herring.ConfigurationError, "call herring.init() on every rank", dist.new_group,
           backend="herring")
    dist.barrier()
    herring.init()
    group = dist.new_group(backend="herring")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2.0] * 3
    dist.barrier()
    print("well", flush=True)
"""


@pytest.mark.timeout(100)
def test_group_beside_gloo(tmp_path: Path) -> None:
    job = run_job(["-n", "2"], textwrap.dedent(BESIDE_GLOO), 80, FOLDER=str(tmp_path))
    assert job.returncode == 0 and job.stdout.count("well") == 2, job.stdout[-4000:]


@pytest.mark.timeout(60)
def test_script_is_missing() -> None:
    job = subprocess.run(
        [sys.executable, "-m", "herring.torch"], stderr=subprocess.PIPE, text=True, timeout=50
    )
    assert job.returncode == 2 and "usage: python -m herring.torch" in job.stderr


@pytest.mark.timeout(60)
def test_entry_point_loads_nothing() -> None:
    script = "import sys, herring.autoload as a; assert 'numpy' not in sys.modules; "
    script += "assert 'torch' not in sys.modules; sys.modules['torch'] = None; a.register()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


@pytest.mark.timeout(100)
def test_example() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "ddp_backend.py"
    job = subprocess.run(
        [*TORCHRUN[:-1], "2", str(example)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", job.stdout)]
    assert job.returncode == 0 and len(losses) == 5, job.stdout
    assert losses[-1] < 0.2 * losses[0], losses
