"""Bad input, disagreement and death: a typed error on every rank, in bounded time, no hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import warm
from jobs import PREAMBLE, expect_success, program, run_job
from ports import held, port_of

SERVED = ["-n", "3", "--nodes", "3", "--servers", "1"]


def test_errors_name_what_is_wrong_and_the_job_goes_on() -> None:
    expect_success(run_job(SERVED, program("errors")))


def test_shutdown_while_others_wait() -> None:
    output = expect_success(
        run_job(
            SERVED,
            """
        herring.init()
        rank = herring.rank()
        herring.barrier()
        if rank == 1:
            herring.shutdown()
        else:
            try:
                herring.allreduce(np.zeros(100_000, np.float32), name="left")
            except herring.PeerLostError as error:
                assert "rank 1 (" in str(error) and "left" in str(error), error
                print("told")
    """,
        )
    )
    assert output.count("told") == 2


@pytest.mark.parametrize(
    "layout",
    [["-n", "3"], SERVED, ["-n", "3", "--nodes", "3"]],
    ids=["one-node", "dedicated", "colocated"],
)
@pytest.mark.parametrize("victim", [0, 2])
def test_everybody_learns_of_a_killed_worker(
    layout: list[str], victim: int, tmp_path: Path
) -> None:
    output = run_job(
        [*layout, "--keep-going"],
        program("killed_worker"),
        VICTIM=str(victim),
        FOLDER=str(tmp_path),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
    ).stdout
    assert output.count("has learned of it") == output.count("still failed") == 2, output[-4000:]


def test_everybody_learns_of_a_killed_server() -> None:
    output = run_job(
        [*SERVED, "--keep-going"],
        program("killed_server"),
    ).stdout
    assert output.count("told") == 3, output[-4000:]


def test_a_machine_that_stood_still_accuses_no_server() -> None:
    job = run_job(["-n", "2", "--servers", "1"], program("machine_pauses"))
    expect_success(job)
    assert job.stdout.count("sum 2.0") == 2, job.stdout


def test_garbage_on_every_port_harms_nobody() -> None:
    expect_success(
        run_job(
            ["-n", "2", "--nodes", "2", "--servers", "1"],
            program("garbage"),
        )
    )


def run_alone(script: str, **environment: str) -> subprocess.CompletedProcess[str]:

    keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
    return warm.run(
        [sys.executable, "-c", PREAMBLE + script],
        env={**keep, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "error", "text"),
    [
        ({"HERRING_RANK": "0"}, "ConfigurationError", "HERRING_SIZE"),
        (
            {"HERRING_RANK": "3", "HERRING_SIZE": "2"},
            "ConfigurationError",
            "contradicts HERRING_SIZE",
        ),
        ({"HERRING_TIMEOUT": "soon"}, "ConfigurationError", "HERRING_TIMEOUT"),
        ({"HERRING_FLOWS": "1000"}, "ConfigurationError", "HERRING_FLOWS"),
        (
            {
                "HERRING_RANK": "1",
                "HERRING_SIZE": "2",
                "HERRING_RENDEZVOUS": "127.0.0.1:9",
                "HERRING_SECRET": "ab" * 32,
                "HERRING_CONNECT_TIMEOUT": "1",
            },
            "TimeoutError",
            "127.0.0.1:9",
        ),
        (
            {
                "HERRING_RANK": "0",
                "HERRING_SIZE": "2",
                "HERRING_RENDEZVOUS": "127.0.0.1:{port}",
                "HERRING_SECRET": "ab" * 32,
            },
            "ConfigurationError",
            "in use",
        ),
        (
            {
                "HERRING_RANK": "0",
                "HERRING_SIZE": "3",
                "HERRING_RENDEZVOUS": "127.0.0.1:{free}",
                "HERRING_SECRET": "ab" * 32,
                "HERRING_CONNECT_TIMEOUT": "1",
                "HERRING_SERVERS": "1",
            },
            "TimeoutError",
            "1",
        ),
    ],
    ids=[
        "no-size",
        "rank-beyond",
        "setting",
        "range",
        "unreachable",
        "port-in-use",
        "missing-ranks",
    ],
)
def test_wrong_environment(environment: dict[str, str], error: str, text: str) -> None:

    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        held() as holder,
    ):
        port, free = busy.getsockname()[1], port_of(holder)
        environment = {k: v.format(port=port, free=free) for k, v in environment.items()}
        ended = run_alone("herring.init()", **environment)
    assert ended.returncode == 1
    # Lines of the log may follow.
    errors = [line for line in ended.stderr.splitlines() if line.startswith("herring.errors.")]
    assert errors and errors[-1].startswith(f"herring.errors.{error}"), ended.stderr
    assert text in errors[-1]


def test_wrong_secret() -> None:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
    holder = held()
    common = {
        **keep,
        "HERRING_SIZE": "2",
        "HERRING_RENDEZVOUS": f"127.0.0.1:{port_of(holder)}",
        "HERRING_CONNECT_TIMEOUT": "20",
    }
    script = [sys.executable, "-c", PREAMBLE + "herring.init()"]
    first = warm.Popen(
        script,
        env={**common, "HERRING_RANK": "0", "HERRING_SECRET": "ab" * 32},
        stderr=subprocess.PIPE,
        text=True,
    )
    # Only rank 0 gives up: rank 1 may find it late.
    second = warm.run(
        script,
        env={
            **common,
            "HERRING_RANK": "1",
            "HERRING_SECRET": "cd" * 32,
            "HERRING_CONNECT_TIMEOUT": "600",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "AuthenticationError" in second.stderr.splitlines()[-1], second.stderr
    _, errors = first.communicate(timeout=600)
    holder.close()
    assert "TimeoutError" in errors and "rank 1" in errors.replace("ranks 1", "rank 1"), errors


@pytest.mark.parametrize("waits_for", ["the others", "the rendezvous", "a server's peers"])
def test_ctrl_c_ends_the_wait_for_a_job(waits_for: str) -> None:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
    with held() as listener:
        port = port_of(listener)
        environment = {
            **keep,
            "HERRING_SIZE": "2",
            "HERRING_SERVERS": "1",
            "HERRING_RANK": "0" if waits_for == "the others" else "1",
            "HERRING_RENDEZVOUS": f"127.0.0.1:{port}",
            "HERRING_SECRET": "ab" * 32,
        }
        script = ["-c", PREAMBLE + "herring.init()"]
        if waits_for == "a server's peers":
            script = ["-m", "herring.command.cli", "server"]
        if waits_for != "the others":  # otherwise rank 0 itself listens at this port
            listener.listen()
        process = warm.Popen(
            [sys.executable, *script], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            if waits_for == "the others":
                end = time.monotonic() + 60
                while True:
                    try:
                        socket.create_connection(("127.0.0.1", port), 30).close()
                        break
                    except ConnectionRefusedError:
                        assert time.monotonic() < end
                        time.sleep(0.05)
            else:
                listener.settimeout(60)
                _connection, _ = listener.accept()  # and never answers
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    if waits_for == "a server's peers":
        assert process.returncode == 128 + signal.SIGINT, errors
    else:
        assert errors.splitlines()[-1] == "KeyboardInterrupt", errors


def test_who_a_worker_is_comes_from_the_environment() -> None:
    ended = run_alone("herring.init(rank=0)")
    assert "HERRING_RANK" in ended.stderr.splitlines()[-1], ended.stderr


# A sandbox refuses memfd_create: a filter that returns EPERM for its number, and allows all else.
SANDBOX = """
import ctypes, platform, struct
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP with SECCOMP_MODE_FILTER
"""


@pytest.mark.parametrize(
    ("limit", "nodes"),
    [
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))", 2),
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))", 1),
        (SANDBOX, 2),
    ],
    ids=["tiny-files", "small-files", "sandbox"],
)
def test_what_the_system_refuses_to_share_is_got_round(limit: str, nodes: int) -> None:
    """The limit of the size of files holds for shared memory, too."""
    job = run_job(
        ["-n", "2"],
        "import resource\n"
        + limit
        + textwrap.dedent(f"""
        herring.init()
        assert herring.num_nodes() == {nodes}, herring.num_nodes()
        array = np.full(20_000_000, herring.rank(), np.float32)
        assert (herring.allreduce(array, "sum") == 1).all()
        own = herring.empty(array.shape, np.float32)
        own[:] = herring.rank() + 1
        assert (herring.allreduce(own, "sum") == 3).all()
    """),
    )
    said = expect_success(job)
    assert said.count("goes without shared memory") == (2 if nodes == 2 else 0), said


def test_without_shared_memory_every_worker_is_a_node() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            """
        herring.init()
        assert (herring.num_nodes(), herring.local_size()) == (2, 1)
        array = np.full(200_000, herring.rank(), np.float32)
        assert (herring.allreduce(array, "sum") == 1).all()
    """,
            HERRING_SHM="0",
        )
    )
