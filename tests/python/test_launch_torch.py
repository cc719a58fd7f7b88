"""What `herring run` sets for scripts that were written for torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from herring.errors import ConfigurationError
from herring.launch.environment import own_environment, passed_environment
from herring.rendezvous.endpoint import reserve
from jobs import program
from launched import run

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
# What a script of torchrun's does.
SCRIPT = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group(sys.argv[1])
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
assert t.item() == sum(range(1, dist.get_world_size() + 1)), t
dist.destroy_process_group()
print("done")
"""


def seen(*arguments: str, **options: object) -> list[dict[str, str]]:
    """The variables of each rank."""
    code = f"import os, json; print(json.dumps({{n: os.environ.get(n) for n in {NAMES}}}))"
    done = run("--no-prefix", *arguments, "--", sys.executable, "-c", code, **options)
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda e: e["RANK"])


def test_variables_of_torchrun() -> None:
    outer = {**os.environ, "RANK": "7", "WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "x"}
    found = seen("-n", "3", "--nodes", "2", env=outer)
    places = [tuple(each[name] for name in NAMES[:6]) for each in found]
    assert places == [
        ("0", "3", "0", "2", "0", "2"),
        ("1", "3", "1", "2", "0", "2"),
        ("2", "3", "0", "1", "1", "2"),
    ]
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1
    assert found[0]["MASTER_ADDR"] == "127.0.0.1"


def test_another_place_for_the_store_can_be_chosen() -> None:
    found = seen("-n", "2", "-x", "MASTER_PORT=4711")
    assert [each["MASTER_PORT"] for each in found] == ["4711", "4711"]
    assert found[0]["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(ConfigurationError, match="-x WORLD_SIZE: herring run sets it"):
        passed_environment({}, ["WORLD_SIZE=3"])


def test_servers_and_jobs_inside_of_others_get_none() -> None:
    outer = {"TORCHELASTIC_USE_AGENT_STORE": "True", "NCCL_DEBUG": "INFO"}
    outer |= dict.fromkeys(NAMES, "1")
    assert own_environment(outer) == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("backend", ["herring", "gloo"])
@pytest.mark.parametrize(
    "options",
    [["-n", "2"], ["-n", "2", "--nodes", "2", "--servers", "1"]],
    ids=["one-node", "server"],
)
def test_a_script_of_torchrun_runs_as_it_is(
    backend: str, options: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run(*options, "--", sys.executable, str(script), backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
    assert ("Herring has averaged nothing" in done.stderr) == (backend == "gloo")


def test_a_reserved_port_is_for_who_asks_for_it() -> None:
    with reserve({}) as held:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", port))  # somebody who does not mean it
        for host in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((host, port))
                server.listen()
        with reserve({}) as another:
            assert another.getsockname()[1] != port


def test_a_restart_by_torchrun_never_meets_the_job_before_it(tmp_path: Path) -> None:
    """One process of the first start comes late, and meets nobody."""
    pytest.importorskip("torch")
    options = ["--standalone", "--nproc-per-node", "3", "--max-restarts", "1"]
    script = program("torchrun_restart", str(tmp_path))
    done = warm.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = (tmp_path / "said").read_text()
    assert done.returncode == 0, done.stderr + said
    assert done.stdout.count("of 3 is done in start 1") == 3, done.stdout
    assert "Error" in said and "is done" not in said, said
