"""How ranks learn address and secret: files, addresses, the torch store, and what can go wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import fork, reap
from herring import _core
from herring.base import user_folder
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous import network, publication
from herring.rendezvous.detect import detect, detect_server
from herring.rendezvous.meet import Meeting, meet, meet_as_server, read_secret_file
from ports import held, port_of

TIMEOUT = 60.0


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def free_port() -> Iterator[int]:
    with held() as holder:
        yield port_of(holder)


def by_hand(port: int, rank: int, host: str = "127.0.0.1") -> dict[str, str]:
    return {
        "HERRING_RANK": str(rank),
        "HERRING_SIZE": "2",
        "HERRING_RENDEZVOUS": f"{host}:{port}",
    }


def join(environ: dict[str, str], timeout: float = TIMEOUT) -> Meeting:
    return meet(detect(environ), environ, timeout)


def serve(address: str, environ: dict[str, str]) -> Meeting:
    return meet_as_server(detect_server(environ, address), environ, TIMEOUT)


def connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def test_a_job_of_one_is_for_this_machine_only() -> None:
    meeting = join({})
    assert meeting.address.startswith("127.0.0.1:")
    assert len(meeting.secret) == 32
    meeting.close()


def test_by_hand_on_one_host_shares_a_secret(runtime: dict[str, str], free_port: int) -> None:
    first = join({**runtime, **by_hand(free_port, 0)})
    second = join({**runtime, **by_hand(free_port, 1, "localhost")})
    server = serve(f"127.0.0.1:{free_port}", runtime)
    assert first.secret == second.secret == server.secret
    assert len(first.secret) == 32
    assert first.address == second.address == server.address == f"127.0.0.1:{free_port}"
    folder = Path(runtime["XDG_RUNTIME_DIR"]) / "herring"
    (note,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert note.stat().st_mode & 0o777 == 0o600
    first.started()
    assert not list(folder.iterdir())
    descriptor = first.take_descriptor()
    assert descriptor is not None
    assert connects(first.address)
    os.close(descriptor)
    assert first.secret.hex() not in repr(first)


def open_mpi(rank: str) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "prterun-test-1@1",
    }


def test_a_host_name_that_means_loopback(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Debian's /etc/hosts has it. Everybody on that machine is reached under its real address.
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **more: real("127.0.1.1" if host == "node7" else host, *rest, **more),
    )
    monkeypatch.setattr("herring.rendezvous.endpoint.own_address", lambda **_: "127.0.0.9")
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    environ = {"HERRING_SECRET_FILE": str(secret)}
    first = join({**environ, **by_hand(free_port, 0, "node7")})
    second = join({**environ, **by_hand(free_port, 1, "node7")})
    server = serve(f"node7:{free_port}", environ)
    assert {first.address, second.address, server.address} == {f"127.0.0.9:{free_port}"}
    assert connects(first.address)
    literal = join({**environ, **by_hand(free_port, 1, "127.0.1.1")})
    assert literal.address == f"127.0.1.1:{free_port}"
    first.close()


def test_rank_0_missing_is_a_timeout(runtime: dict[str, str]) -> None:
    with pytest.raises(TimeoutError, match=r"rank 1 of 2 .*OMPI_COMM_WORLD_RANK.* rank 0"):
        join({**runtime, **open_mpi("1")}, timeout=0.05)


MEET = """
    import os, sys
    from herring.rendezvous.detect import detect
    from herring.rendezvous.meet import meet
    for _ in range(2):  # a job may start again in the same processes
        worker = detect(os.environ)
        meeting = meet(worker, timeout=60)
        print(worker.rank, meeting.address, meeting.secret.hex(), flush=True)
        # Rank 0 keeps what it published until all have read it.
        sys.stdin.readline()
        meeting.close()
"""


def start(environ: dict[str, str], shells: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(MEET)]
    for _ in range(shells):
        command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return subprocess.Popen(
        command,
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def check_two_generations(processes: list[subprocess.Popen[str]]) -> None:
    try:
        seen = set()
        for _ in range(2):
            lines = [process.stdout.readline().split() for process in processes]
            assert [line[0] for line in lines] == ["0", "1"]
            assert lines[0][1:] == lines[1][1:]
            seen.add(tuple(lines[0][1:]))
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
        assert len(seen) == 2
        for process in processes:
            assert process.wait(TIMEOUT) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def test_open_mpi_ranks_meet_by_their_job_id(runtime: dict[str, str]) -> None:
    check_two_generations([start({**runtime, **open_mpi(rank)}) for rank in "01"])


@pytest.mark.parametrize("shells", [(0, 0), (0, 2)])
def test_mpich_ranks_find_their_launcher(runtime: dict[str, str], shells: tuple[int, int]) -> None:
    environ = {**runtime, "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    check_two_generations(
        [
            start({**environ, "PMI_RANK": rank, "MPI_LOCALRANKID": rank}, count)
            for rank, count in zip("01", shells)
        ]
    )


@pytest.mark.parametrize("served", [True, False])
def test_torch_store(runtime: dict[str, str], served: bool, free_port: int) -> None:
    distributed = pytest.importorskip("torch.distributed")
    environ = {**runtime, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    if served:
        store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        environ["MASTER_PORT"] = str(store.port)
        environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    else:
        environ["MASTER_PORT"] = str(free_port)  # Rank 0 must serve it there.
    check_two_generations([start({**environ, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"])


def test_torch_store_not_reachable(free_port: int) -> None:
    pytest.importorskip("torch.distributed")
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port),
    }
    with pytest.raises(ConfigurationError, match=f"MASTER_PORT={free_port}"):
        join(environ, timeout=1)


def test_the_note_of_a_dead_process_is_not_believed(runtime: dict[str, str]) -> None:
    folder = publication.directory(runtime)

    def run() -> None:
        publication.Publication(folder, "key", {"secret": "old"})
        os.kill(os.getpid(), signal.SIGKILL)

    assert reap(fork(run)) == -signal.SIGKILL
    assert (folder / "key").exists()
    with pytest.raises(TimeoutError, match="key"):
        publication.wait_for(runtime, "key", publication.Wait("this test", 0.05, 60))
    note = publication.Publication(folder, "key", {"secret": "new"})
    assert publication.wait_for(runtime, "key", publication.Wait("this test", 1, 60)) == {
        "secret": "new"
    }
    with pytest.raises(ConfigurationError, match="same name"):
        publication.Publication(folder, "key", {})
    note.withdraw()
    note.withdraw()
    assert not list(folder.iterdir())


def test_a_forked_child_keeps_nothing(runtime: dict[str, str], free_port: int) -> None:
    meeting = join({**runtime, **by_hand(free_port, 0)})
    here, there = socket.socketpair()

    def run() -> None:
        here.close()
        there.send(b"up")  # what runs in a forked child has run
        there.recv(1)  # lives until the parent has looked

    child = fork(run)
    try:
        there.close()
        assert here.recv(2) == b"up"
        meeting.close()
        assert not connects(f"127.0.0.1:{free_port}")
        assert not list(publication.directory(runtime).iterdir())
    finally:
        here.close()
        assert reap(child) == 0


@pytest.mark.parametrize("what", ["open", "link", "file", "other"])
def test_a_taken_folder_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another user may have made what is called as this user's folder, in whatever way."""
    monkeypatch.setattr(user_folder, "SHARED", tmp_path)
    for number in range(2):
        name = tmp_path / f"herring-{os.getuid()}{'-more' * number}"
        if what == "open":
            name.mkdir()
            name.chmod(0o777)
        elif what == "link":
            name.symlink_to(tmp_path)
        elif what == "file":
            name.touch()
        else:
            if os.getuid() != 0:
                pytest.skip("only root can make somebody else's folder")
            name.mkdir(mode=0o700)
            os.chown(name, 65534, 65534)
    folder = publication.directory({})
    assert folder.name.startswith(f"herring-{os.getuid()}-") and not folder.name.endswith("-more")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert publication.directory({}) == folder, "one folder, however many jobs"
    wait = publication.Wait("this test", 30, 60)
    note = publication.Publication(folder, "key", {"secret": "s"})
    assert publication.wait_for({}, "key", wait) == {"secret": "s"}
    # Its maker removes it meanwhile, and somebody of this user makes it.
    if what == "open":
        (tmp_path / f"herring-{os.getuid()}").rmdir()
        assert publication.directory({}) != folder
    assert publication.wait_for({}, "key", wait) == {"secret": "s"}
    note.withdraw()


def test_ranks_with_and_without_a_runtime_folder_meet(
    runtime: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folder, "SHARED", tmp_path)
    note = publication.Publication(publication.directory({}), "key", {"secret": "s"})
    wait = publication.Wait("this test", 30, 60)
    assert publication.wait_for(runtime, "key", wait) == {"secret": "s"}
    note.withdraw()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_folder, "SHARED", tmp_path / "none")
    with pytest.raises(ConfigurationError, match="cannot make a folder for this user"):
        publication.directory({})


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"HERRING_RENDEZVOUS names port {port}"):
            join(by_hand(port, 0))


def test_unknown_host() -> None:
    with pytest.raises(ConfigurationError, match=r"HERRING_RENDEZVOUS.*no-such-host\.invalid"):
        join({**by_hand(5000, 0, "no-such-host.invalid"), "HERRING_SECRET": "00" * 16})


def test_inherited_socket_is_used_and_kept(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        environ = {
            **by_hand(port, 0),
            "HERRING_SECRET": "00" * 16,
            "HERRING_RENDEZVOUS_FD": str(os.dup(listener.fileno())),
        }
        for _ in range(2):
            meeting = join(environ)
            descriptor = meeting.take_descriptor()
            assert descriptor is not None
            assert socket.socket(fileno=descriptor).getsockname()[1] == port
        os.close(int(environ["HERRING_RENDEZVOUS_FD"]))
    for wrong in ("0", environ["HERRING_RENDEZVOUS_FD"], "900"):
        with pytest.raises(ConfigurationError, match=f"HERRING_RENDEZVOUS_FD={wrong}"):
            join({**environ, "HERRING_RENDEZVOUS_FD": wrong})


def test_a_forked_child_closes_the_inherited_socket_only(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inherited = os.dup(listener.fileno())
        environ = {
            **by_hand(listener.getsockname()[1], 0),
            "HERRING_SECRET": "00" * 16,
            "HERRING_RENDEZVOUS_FD": str(inherited),
        }

        try:
            join(environ).close()
            assert reap(fork(lambda: os.fstat(inherited))) == 1  # not open there
            join(environ).close()
            os.dup2(sys.stderr.fileno(), inherited)  # the program closed it and opened another
            assert reap(fork(lambda: os.fstat(inherited))) == 0
        finally:
            os.close(inherited)


def test_secret_files(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(_core, "log_warning", said.append)
    path, secret = tmp_path / "secret", b"0123456789abcdef" * 4
    path.write_text(f"{secret.decode()}\n")
    path.chmod(0o644)
    assert read_secret_file(str(path)) == secret
    assert said.pop().endswith(f"chmod 600 {path}")
    path.chmod(0o600)
    environ = {**by_hand(free_port, 1), "HERRING_SECRET_FILE": str(path)}
    assert join(environ).secret == secret
    assert serve(f"127.0.0.1:{free_port}", environ).secret == secret
    assert not said
    path.write_text("0123456789abcdef0123")
    assert join(environ).secret == b"0123456789abcdef0123"
    assert re.search(r"holds 20 bytes, which .* guess: use 32 random bytes", said.pop())
    path.write_text("short")
    with pytest.raises(ConfigurationError, match=r"holds 5 bytes.*at least 16"):
        join(environ)
    with pytest.raises(ConfigurationError, match=r"No such file.*; copy the job's secret file"):
        join({**environ, "HERRING_SECRET_FILE": str(tmp_path / "none")})


def test_server_without_a_secret_on_another_host() -> None:
    with pytest.raises(ConfigurationError, match="HERRING_SECRET_FILE is not set"):
        serve("192.0.2.77:5000", {})
    with pytest.raises(ConfigurationError, match="--rendezvous"):
        serve("nonsense", {})


def test_interfaces() -> None:
    (loopback,) = [each for each in network.interfaces() if each.name == "lo"]
    assert "127.0.0.1" in loopback.addresses
    assert loopback.up
    assert network.is_local_address("127.0.0.1")
    assert not network.is_local_address("192.0.2.77")
    assert network.own_address(interface="lo") == "127.0.0.1"
    assert network.own_address(interface="127.0.0.1") == "127.0.0.1"
    assert network.is_local_address(network.own_address("localhost"))
    with pytest.raises(ConfigurationError, match=r"HERRING_INTERFACE=nosuch0.*lo"):
        network.own_address(interface="nosuch0")


REAL = """
    import os
    from herring.rendezvous.detect import detect
    from herring.rendezvous.meet import meet
    from herring.rendezvous.publication import directory
    worker = detect(os.environ)
    meeting = meet(worker, timeout=60)
    os.write(1, f"{worker.rank}/{worker.size} {meeting.address} {meeting.secret.hex()}\\n".encode())
    if worker.rank == 0:
        import time
        done = directory(os.environ) / "done"
        while not done.exists():  # the last of the others says so
            time.sleep(0.01)
        meeting.started()
    elif worker.rank == 1:
        (directory(os.environ) / "done").touch()
"""


@pytest.mark.parametrize(
    "command",
    [
        ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
        ["mpiexec.hydra", "-n", "2"],
        ["mpiexec.hydra", "-n", "2", "sh", "-c", '"$@"; exit $?', "sh"],
        ["srun", "-n", "2"],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"],
    ],
    ids=["openmpi", "hydra", "hydra-shell", "slurm", "torchrun"],
)
def test_real_launchers(runtime: dict[str, str], command: list[str]) -> None:
    if not shutil.which(command[0]) or (
        "torch.distributed.run" in command and not importlib.util.find_spec("torch")
    ):
        pytest.skip(f"{command[0]} is not installed")
    if command[0] == "srun" and subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("there is no Slurm cluster here")
    done = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(REAL)],
        env={**os.environ, **runtime},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split() for line in done.stdout.splitlines() if "/2 " in line)
    assert [line[0] for line in lines] == ["0/2", "1/2"], done.stdout
    assert lines[0][1:] == lines[1][1:]
