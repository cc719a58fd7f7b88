"""Tests Ray Train over Herring, with colocated servers and with servers as actors."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from herring.base.parts import install_command

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs ray", allow_module_level=True)

import torch

from cases import without
from herring.errors import ConfigurationError
from herring.ray import HerringConfig

SCRIPTS = Path(__file__).parent / "scripts"
RUNS = ("gloo", "colocated", "servers", "death", "too-many")


def left_behind(group: int) -> list[str]:
    """Returns the processes of a session that still run, as lines of `ps`."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,stat=,args=", "-s", str(group)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if " Z" not in line]


@pytest.fixture(scope="module")
def session():
    """Runs all in one session of Ray, which starts slowly; yields folder, output and process."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short, because Ray puts sockets there
    environment = {
        "OUT": f"{folder}/out",
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SCRIPTS),
    }
    Path(environment["OUT"]).mkdir()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "ray_script.py"), *RUNS],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=600)
        yield Path(environment["OUT"]), output, process
    finally:
        for line in left_behind(process.pid):
            os.kill(int(line.split()[0]), signal.SIGKILL)
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def said(folder: Path, output: str, name: str) -> dict:
    path = folder / name / "rank0.json"
    assert path.exists(), output[-6000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize(("name", "servers"), [("colocated", ""), ("servers", "2")])
def test_equals_gloo(session, name: str, servers: str) -> None:
    folder, output, _ = session
    found = said(folder, output, name)
    assert found == {"backend": "herring", "nodes": 2, "servers": servers, "first": 0}
    assert said(folder, output, "gloo")["backend"] == "gloo"
    for rank in range(2):
        wanted = torch.load(folder / "gloo" / f"rank{rank}.pt")
        for key, value in torch.load(folder / name / f"rank{rank}.pt").items():
            assert torch.equal(value, wanted[key]), key


def test_a_worker_dies(session) -> None:
    """Ray restarts the workers as a new job, with new servers, from the last checkpoint."""
    folder, output, _ = session
    found = said(folder, output, "death")
    assert (found["backend"], found["nodes"], found["servers"]) == ("herring", 2, "1")
    assert found["first"] in (1, 2), found  # Depends on the last stored checkpoint.


def test_servers_that_do_not_fit(session) -> None:
    _, output, _ = session
    (line,) = [line for line in output.splitlines() if "Ray has not placed 3 servers" in line][:1]
    assert "herring_server: 2 free of 2" in line and "placement_timeout_s" in line, line


def test_nothing_is_left(session) -> None:
    """Ray has released the servers' resources, and none of its processes is left."""
    _, output, process = session
    assert process.returncode == 0, output[-6000:]
    assert "free: 2 for servers" in output, output[-2000:]
    deadline = time.monotonic() + 20
    while left_behind(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)  # Ray does not wait for its workers to end.
    assert not left_behind(process.pid)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "gloo"}, "backend is 'gloo'"),
        ({"servers": -1}, "servers is -1; it must be an integer of at least 0"),
        ({"placement": "NEAR"}, "placement is 'NEAR'; it must be one of SPREAD"),
        ({"server_resources": {"CPU": 0}}, "server_resources is {'CPU': 0}"),
        ({"placement_timeout_s": 0}, "placement_timeout_s is 0"),
    ],
)
def test_refusals(options: dict, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text.split("{")[0]):
        HerringConfig(**options)
    assert HerringConfig(servers=2).to_dict()["servers"] == 2


def test_without_it() -> None:
    assert install_command("ray") in without("ray", "herring.ray")
