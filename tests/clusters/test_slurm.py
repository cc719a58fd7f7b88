"""Tests jobs under a real Slurm, on emulated hosts whose names nothing resolves."""

from __future__ import annotations

import pathlib
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator

import pytest
from slurm import SlurmCluster, why_no_slurm

reason = why_no_slurm()
pytestmark = [
    pytest.mark.skipif(reason is not None, reason=str(reason)),
    pytest.mark.timeout(120),
]

WORKER = [sys.executable, str(pathlib.Path(__file__).with_name("worker.py"))]
PYTHON, SCRIPT = WORKER
SERVER = [sys.executable, "-m", "herring.command.cli", "server"]
RUN_SERVER = " ".join(SERVER)
STRANGER = str(pathlib.Path(__file__).with_name("stranger.py"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    # Other users cannot enter pytest's folder, but must be able to reach munged's socket.
    with tempfile.TemporaryDirectory(prefix="herring-slurm-") as folder:
        with SlurmCluster(pathlib.Path(folder)) as running:
            yield running


def joined(output: str) -> list[tuple[int, int, str]]:
    """Returns (rank, local size, the rest) of every line that a worker printed, by rank."""
    found = re.findall(r"rank (\d+)/\d+ local \d+/(\d+) (node .*)", output)
    return sorted((int(rank), int(local), rest) for rank, local, rest in found)


def check(output: str, local_sizes: list[int], dedicated: int = 0) -> None:
    """Asserts that ranks on nodes of these sizes joined one job with `dedicated` servers."""
    nodes = len(local_sizes)
    expected = [
        (size, f"node {node}/{nodes} dedicated {dedicated}")
        for node, size in enumerate(local_sizes)
        for _ in range(size)
    ]
    assert [each[1:] for each in joined(output)] == expected, output
    assert [each[0] for each in joined(output)] == list(range(len(expected))), output


def test_the_names_do_not_resolve(cluster: SlurmCluster) -> None:
    with pytest.raises(OSError):
        socket.getaddrinfo(cluster.names[0], None)


@pytest.mark.parametrize(
    ("options", "local_sizes"),
    [
        (["-N2", "--ntasks-per-node=2"], [2, 2]),
        (["-N3", "-n5"], [3, 1, 1]),
        (["-n1"], [1]),
        (["-N1", "-n3"], [3]),
        (["-w", "herring-node[2,4]", "-N2", "-n2"], [1, 1]),
        (["-N3", "-n3", "--exclude=herring-node2"], [1, 1, 1]),
    ],
    ids=["even", "uneven", "one", "one-node", "gap", "range"],
)
def test_srun(cluster: SlurmCluster, options: list[str], local_sizes: list[int]) -> None:
    done = cluster.submit(["srun", *options, *WORKER])
    assert done.returncode == 0, done.stderr
    check(done.stdout, local_sizes)


def test_srun_starts_again_in_the_same_processes(cluster: SlurmCluster) -> None:
    done = cluster.submit(["srun", "-N2", "-n3", *WORKER, "3"])
    assert done.returncode == 0, done.stderr
    assert len(joined(done.stdout)) == 9


def test_a_batch_script_itself_is_a_job_of_one(cluster: SlurmCluster) -> None:
    status, output = cluster.batch(f"{PYTHON} {SCRIPT}", ["-N2", "-n4"])
    assert status == 0, output
    check(output, [1])


def test_steps_in_turn_and_at_once(cluster: SlurmCluster) -> None:
    step = f"srun --overlap -N2 -n2 {PYTHON} {SCRIPT}"
    status, output = cluster.batch(
        f"{step} && {step} || exit 1\n{step} & {step} & wait", ["-N2", "-n4"]
    )
    assert status == 0, output
    assert len(joined(output)) == 8, output


def test_a_step_on_other_nodes_than_the_first(cluster: SlurmCluster) -> None:
    status, output = cluster.batch(
        f"srun -N2 -n2 -w herring-node[2-3] {PYTHON} {SCRIPT}", ["-N3", "-n3"]
    )
    assert status == 0, output
    check(output, [1, 1])


def test_servers_in_a_step_of_their_own(cluster: SlurmCluster) -> None:
    script = f"""
    export HERRING_SERVERS=2
    srun -N2 -n2 -w herring-node[3-4] {RUN_SERVER} &
    srun -N2 -n4 -w herring-node[1-2] {PYTHON} {SCRIPT} && wait $! && echo all ended
    """
    status, output = cluster.batch(script, ["-N4", "--ntasks-per-node=2"])
    assert status == 0, output
    check(output, [2, 2], dedicated=2)
    assert "all ended" in output


@pytest.mark.parametrize("servers", [0, 2])
def test_mpirun_inside_an_allocation(cluster: SlurmCluster, servers: int) -> None:
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("needs mpirun.openmpi: apt-get install openmpi-bin")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    line = f"mpirun.openmpi -n 4 {PYTHON} {SCRIPT}"
    if servers:
        line = f"mpirun.openmpi -n 4 -x HERRING_SIZE=4 {PYTHON} {SCRIPT} : -n 2 {RUN_SERVER}"
    status, output = cluster.batch(line, ["-N3", "--ntasks-per-node=2"], root)
    assert status == 0, output
    check(output, [2, 2], dedicated=servers)


HETEROGENEOUS = """\
#SBATCH -w herring-node[3-4] -n3
#SBATCH hetjob
#SBATCH -w herring-node[1-2] -n2
"""


def test_a_heterogeneous_job_by_two_steps(cluster: SlurmCluster) -> None:
    script = f"""{HETEROGENEOUS}
export HERRING_SERVERS=2
srun --het-group=1 {RUN_SERVER} &
srun --het-group=0 {PYTHON} {SCRIPT} && wait $! && echo all ended
"""
    status, output = cluster.batch(script)
    assert status == 0, output
    check(output, [2, 1], dedicated=2)
    assert "all ended" in output


def test_a_heterogeneous_job_by_one_step(cluster: SlurmCluster) -> None:
    script = f"""{HETEROGENEOUS}
export HERRING_SIZE=3
srun --het-group=0 {PYTHON} {SCRIPT} : --het-group=1 {RUN_SERVER}
"""
    status, output = cluster.batch(script)
    assert status == 0, output
    check(output, [2, 1], dedicated=2)


def test_a_heterogeneous_job_without_a_script(cluster: SlurmCluster) -> None:
    done = cluster.submit(
        ["srun", "-N2", "-n3", *WORKER, ":", "-N1", "-n1", *SERVER], {"HERRING_SIZE": "3"}
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, [2, 1], dedicated=1)


def test_servers_that_are_counted_as_workers(cluster: SlurmCluster) -> None:
    done = cluster.submit(
        ["srun", "-N2", "-n2", *WORKER, ":", "-N1", "-n1", *SERVER],
        {"HERRING_CONNECT_TIMEOUT": "3"},
    )
    assert done.returncode != 0
    assert "set HERRING_SIZE to the number of workers" in done.stderr


def test_servers_that_do_not_come(cluster: SlurmCluster) -> None:
    more = {"HERRING_SERVERS": "2", "HERRING_CONNECT_TIMEOUT": "3"}
    done = cluster.submit(["srun", "-N2", "-n2", *WORKER], more)
    assert done.returncode != 0
    assert "TimeoutError" in done.stderr
    assert "server" in done.stderr


def test_workers_that_do_not_come(cluster: SlurmCluster) -> None:
    done = cluster.submit(["srun", "-N1", "-n1", *SERVER], {"HERRING_CONNECT_TIMEOUT": "2"})
    assert done.returncode != 0
    assert "for rank 0 to answer at 10.77." in done.stderr


def test_workers_not_on_the_first_node(cluster: SlurmCluster) -> None:
    script = f"""
    export HERRING_SERVERS=1 HERRING_CONNECT_TIMEOUT=3
    srun -n1 -w herring-node1 {RUN_SERVER} &
    srun -N2 -n2 -w herring-node[2-3] {PYTHON} {SCRIPT}
    """
    status, output = cluster.batch(script, ["-N3", "-n3"])
    assert status != 0
    assert "rank 0 runs on herring-node2, but the others look for it on herring-node1" in output


def test_an_array_of_jobs(cluster: SlurmCluster) -> None:
    path = cluster.folder / "array.sh"
    path.write_text(f"#!/bin/bash\nsrun -N2 -n2 {PYTHON} {SCRIPT}\n")
    done = cluster.submit(
        ["sbatch", "--wait", "--array=0-2", "-N2", "-n2", "--output=array-%a.out", str(path)]
    )
    outputs = [(cluster.folder / f"array-{index}.out").read_text() for index in range(3)]
    assert done.returncode == 0, outputs
    for output in outputs:
        check(output, [1, 1])


def test_a_job_that_is_queued_again(cluster: SlurmCluster) -> None:
    step = f"srun -N2 -n2 {PYTHON} {SCRIPT}"
    script = f"""
    {step} || exit 1
    [ "$SLURM_RESTART_COUNT" = 1 ] || scontrol requeue $SLURM_JOB_ID
    """
    status, output = cluster.batch(script, ["-N2", "-n2", "--requeue"])
    assert status == 0, output
    assert len(joined(output)) == 4, output


def test_a_secret_of_the_users_own(cluster: SlurmCluster) -> None:
    done = cluster.submit(
        ["srun", "-N2", "-n2", *WORKER], {"HERRING_SECRET": secrets.token_hex(32)}
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout, [1, 1])


def test_secrets_that_differ(cluster: SlurmCluster) -> None:
    script = f"export HERRING_SECRET=$(openssl rand -hex 32); exec {PYTHON} {SCRIPT}"
    done = cluster.submit(
        ["srun", "-N2", "-n2", "sh", "-c", script], {"HERRING_CONNECT_TIMEOUT": "5"}
    )
    assert done.returncode != 0
    assert "AuthenticationError" in done.stderr


def test_one_rank_with_a_secret_and_one_without(cluster: SlurmCluster) -> None:
    script = f"[ $SLURM_PROCID = 1 ] || unset HERRING_SECRET; exec {PYTHON} {SCRIPT}"
    more = {"HERRING_SECRET": secrets.token_hex(32), "HERRING_CONNECT_TIMEOUT": "4"}
    done = cluster.submit(["srun", "-N2", "-n2", "sh", "-c", script], more)
    assert done.returncode != 0
    assert "Error" in done.stderr


def test_without_munge(cluster: SlurmCluster) -> None:
    # Without scontrol in PATH, as with Slurm's own authentication, no socket of munged is found.
    done = cluster.submit(["srun", "-N2", "-n2", "env", "PATH=/nonexistent", *WORKER])
    assert done.returncode != 0
    assert "MUNGE cannot hand out the job's secret: munged does not answer" in done.stderr
    assert "export HERRING_SECRET=$(openssl rand -hex 32)" in done.stderr


def test_strangers_get_nothing(cluster: SlurmCluster) -> None:
    # Rank 0 waits for a second task, which lets strangers try first. They know all public facts.
    script = f"""
    export HERRING_RENDEZVOUS=herring-node1:29777
    srun --overlap -N2 -n2 sh -c '
      [ $SLURM_PROCID = 0 ] || while [ ! -e asked ]; do sleep 0.05; done
      exec {PYTHON} {SCRIPT}' &
    srun --overlap -n1 -w herring-node2 env MUNGE_SOCKET={cluster.socket} {PYTHON} {STRANGER}
    touch asked
    wait %1
    """
    status, output = cluster.batch(script, ["-N2", "-n4"])
    assert status == 0, output
    check(output, [1, 1])
    assert "stranger of another user: nothing, nothing, nothing" in output
    assert "and cannot read what others get" in output
    assert "this user, another job: nothing" in output
    assert "this user, this job: an answer" in output
