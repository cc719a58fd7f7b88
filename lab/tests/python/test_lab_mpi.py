"""MPI jobs start and run in the laboratory, and errors name a missing MPI."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from herring.errors import ConfigurationError
from herring_lab import competitors as peers
from herring_lab.emulate import mpi

HERRING = [sys.executable, "-m", "herring.command.cli"]
ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))
needs_root = pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")


class FakeCluster:
    size = 3

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def namespace(self, host: int) -> str:
        return f"herring-x-h{host}"


def ranks(count: int, per_host: int = 1) -> list[mpi.Rank]:
    return [
        mpi.Rank(rank // per_host, ["work", str(rank)], {"RANK": str(rank), "SIZE": str(count)})
        for rank in range(count)
    ]


@pytest.fixture
def launchers(tmp_path, monkeypatch) -> pathlib.Path:
    """Makes ``PATH`` a folder with only a shell, in which tests install fake launchers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    mpi.missing.cache_clear()
    yield folder
    mpi.missing.cache_clear()


def pretend(folder: pathlib.Path, program: str, version: str) -> None:
    path = folder / program
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("name", "package"), [("mpich", "mpich"), ("openmpi", "openmpi-bin")])
def test_a_missing_mpi_is_named_with_its_package(launchers, name, package) -> None:
    with pytest.raises(ConfigurationError, match=f"not installed .*apt install {package}"):
        mpi.require(name)
    assert package in mpi.missing(name)
    assert package in peers.missing(name)


def test_a_launcher_of_the_other_mpi_does_not_count(launchers) -> None:
    pretend(launchers, "mpirun", "mpirun (Open MPI) 4.1.4")
    pretend(launchers, "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    assert mpi.require("openmpi") == str(launchers / "mpirun")
    with pytest.raises(ConfigurationError, match="MPICH is not installed"):
        mpi.require("mpich")


def test_without_mpi4py_its_extra_is_named(launchers, monkeypatch) -> None:
    pretend(launchers, "mpirun", "mpirun (Open MPI) 4.1.4")
    output = mpi._output
    failed = "ModuleNotFoundError: No module named 'mpi4py'"
    monkeypatch.setattr(
        mpi, "_output", lambda argv, *rest: failed if "-c" in argv else output(argv, *rest)
    )
    assert "No module named 'mpi4py'" in mpi.missing("openmpi")
    assert "pip install 'mpi4py" in mpi.missing("openmpi")


def test_ranks_get_their_own_variables_and_hosts(launchers, tmp_path) -> None:
    pretend(launchers, "mpirun", "mpirun (Open MPI) 4.1.4")
    pretend(launchers, "mpiexec", "HYDRA build details")
    for name in mpi.MPIS:
        folder = tmp_path / name
        folder.mkdir()
        argv, env = mpi.launch(name, FakeCluster(), ranks(3, 2), str(folder))
        text = " ".join(argv)
        # Variables that are equal for all ranks are in the launcher's environment.
        assert env["SIZE"] == "3"
        assert "SIZE=" not in text
        assert "-n 1 env RANK=0 work 0 : " in text
        assert text.endswith("-n 1 env RANK=2 work 2")
        assert ("-hosts 10.77.0.1:2,10.77.0.2:1" in text) == (name == "mpich")
        assert text.count("--host host0 ") == (2 if name == "openmpi" else 0)
        agent = (folder / "agent").read_text()
        assert "host1|10.77.0.2) name=host1 space=herring-x-h1" in agent


def test_ranks_on_this_machine_need_no_network(launchers, tmp_path) -> None:
    pretend(launchers, "mpirun", "mpirun (Open MPI) 4.1.4")
    pretend(launchers, "mpiexec", "HYDRA build details")
    for name, program in (("openmpi", "mpirun"), ("mpich", "mpiexec")):
        folder = tmp_path / name
        folder.mkdir()
        argv, env = mpi.launch_here(name, ["work", "x"], 4, str(folder))
        assert argv == [str(launchers / program), "-n", "4", "work", "x"]
        assert env["MPI4PY_MPIABI"] == name
        assert env["PATH"] == str(launchers)
        assert "eth0" not in env.values()


def test_the_remote_shell_finds_host_and_command(launchers, tmp_path) -> None:
    # These replace the tools that enter namespaces, and print their arguments.
    pretend(launchers, "nsenter", "unused")
    (launchers / "nsenter").write_text('#!/bin/sh\necho "$@"\n')
    mpi._write_agent(FakeCluster(), str(tmp_path))
    agent = [str(tmp_path / "agent")]
    said = subprocess.run([*agent, "-x", "10.77.0.3", "proxy", "--id 2"], capture_output=True)
    assert said.stdout.startswith(b"--net=/run/netns/herring-x-h2 ")
    assert said.stdout.endswith(b"hostname host2; proxy --id 2\n")
    wrong = subprocess.run([*agent, "host7", "proxy"], capture_output=True)
    assert wrong.returncode == 1
    assert b"no host host7" in wrong.stderr


def test_a_library_of_another_name_is_made_known(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mpi, "_libraries", lambda: {"libmpich.so.12": "/lib/libmpich.so.12"})
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    env = mpi._environment("mpich", str(tmp_path))
    assert env["LD_LIBRARY_PATH"] == f"{tmp_path}:/opt/lib"
    assert os.readlink(tmp_path / "libmpi.so.12") == "/lib/libmpich.so.12"
    assert "LD_LIBRARY_PATH" not in mpi._environment("openmpi", str(tmp_path))


@needs_root
def test_the_lab_says_what_is_missing_before_it_makes_anything(launchers) -> None:
    done = subprocess.run(
        [*HERRING, "lab", "run", "--mpi", "mpich", "--", sys.executable, "-c", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PATH": str(launchers)},
    )
    assert done.returncode == 2
    assert "MPICH is not installed" in done.stderr


@needs_root
@pytest.mark.parametrize("name", mpi.MPIS)
def test_an_mpi_peer_end_to_end(name, tmp_path) -> None:
    reason = peers.missing(name)
    if reason:
        pytest.skip(reason)
    path = tmp_path / "result.json"
    bench = [sys.executable, "-m", "herring.bench", "allreduce", "--peer", name, "--op", "sum"]
    bench += ["--algorithm", "butterfly", "--sizes", "4K,100K", "--iterations", "3", "--check"]
    lab = ["lab", "run", "--no-check", "--workers", "3", "--timeout", "120", "--mpi", name]
    done = subprocess.run(
        [*HERRING, *lab, "--", *bench, "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "wrong elements: 0 OK" in done.stdout
    document = json.loads(path.read_text())
    assert (document["library"], document["workers"], document["nodes"]) == (name, 3, 3)
    assert document["details"]["algorithm"] == "butterfly"
    assert [entry["bytes"] for entry in document["results"]] == [4000, 100_000]
    assert all(entry["wrong"] == 0 for entry in document["results"])


@needs_root
@pytest.mark.parametrize("name", mpi.MPIS)
def test_an_mpi_peer_without_its_launcher_says_so(name) -> None:
    if peers.missing(name):
        pytest.skip(peers.missing(name))
    command = [sys.executable, "-m", "herring.bench", "allreduce", "--peer", name]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "HERRING_SIZE": "2", "HERRING_RANK": "0"},
    )
    assert done.returncode == 3
    # Without the laboratory's variables, the library is not found, or is found with only one rank.
    assert "launcher" in done.stderr or "herring-dl[mpi]" in done.stderr
