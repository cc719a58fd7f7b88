"""`herring doctor` with processes on this machine, under several launchers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import warm
from gpus import ENVIRONMENT, FOLDER
from herring.command.cli import make_parser
from herring.command.doctor import handle
from herring.errors import ConfigurationError
from launched import HERRING, LIMIT, run
from ports import held, port_of
from test_launch_ssh import ssh  # noqa: F401  (a fixture)

DOCTOR = [*HERRING, "doctor"]
SECRET = "5a" * 32


def start(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    return warm.Popen(
        [*DOCTOR, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=LIMIT) for process in processes]
    return [(process.returncode, *each) for process, each in zip(processes, said)]


def by_hand(rank: int, port: int, size: int = 2, **others: str) -> dict[str, str]:
    return {
        "HERRING_RANK": str(rank),
        "HERRING_SIZE": str(size),
        "HERRING_RENDEZVOUS": f"127.0.0.1:{port}",
        "HERRING_SECRET": SECRET,
        "HERRING_HOST_ID": f"host-{rank}",
        **others,
    }


@pytest.fixture
def port() -> Iterator[int]:
    with held() as holder:
        yield port_of(holder)


def of_job(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the findings that do not depend on how fast this machine is just now."""
    measured = re.compile(r"bit/s|round trip|small packets|clock|resolve|/dev/shm|buffer|core")
    return [one for one in report["findings"] if not measured.search(one["what"])]


def test_this_host_alone() -> None:
    [(status, out, error)] = ends(start({}))
    assert (status, error) == (0, ""), out
    assert out.startswith("herring doctor: ") and "1 host with 1 rank" in out
    [(status, out, _)] = ends(start({}, "--json"))
    report = json.loads(out)
    assert status == 0 and report["size"] == 1 and report["links"] == []
    [host] = report["hosts"]
    assert host["facts"]["versions"]["python"] == sys.version.split()[0]
    assert host["cores"] >= 1 and host["facts"]["limits"]["open_files_hard"] != 0
    assert report["provenance"]["options"]["time_limit"] == 60


@pytest.mark.skipif(not (FOLDER / "libcuda.so.1").exists(), reason="make test builds the stand-in")
def test_copies_of_gpus() -> None:
    [(status, out, _)] = ends(start({**ENVIRONMENT, "STANDIN_DEVICES": "2"}, "--json"))
    gpus = json.loads(out)["hosts"][0]["facts"]["gpus"]
    assert status == 0 and len(gpus["devices"]) == 2
    assert all(each["out"] > 0 and each["in"] > 0 for each in gpus["devices"])


def test_rank_0_alone_reports() -> None:
    done = run("-n", "5", "--nodes", "2", "--", *DOCTOR, "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(line.startswith("[0] ") for line in lines)
    report = json.loads("\n".join(line[4:] for line in lines))
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1, 2], [3, 4]]
    assert len(report["links"]) == 2 and all(one["bits_per_second"] for one in report["links"])
    assert of_job(report) == []
    assert "averaged nothing" not in done.stderr


def test_messages_of_many_sizes_are_measured_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.svg"
    options = ("--no-prefix", "--", *DOCTOR, "--json", "--curve", str(picture))
    done = run("-n", "3", "--nodes", "3", *options)
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["links"]
    assert len(links) == 6
    for link in links:
        sizes = [point["bytes"] for point in link["curve"]]
        assert sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] >= 1_000_000
        assert link["alpha_seconds"] > 0 and link["fitted_bits_per_second"] > 1e6
    assert "time, one way" in picture.read_text()


def test_a_curve_needs_two_hosts_and_a_picture_an_ending(tmp_path: Path) -> None:
    [(status, _, error)] = ends(start({}, "--curve"))
    assert status == 0 and "--curve: there is one host" in error
    for name, text in (("c.gif", "must end in one of .svg, .png, .pdf"), ("no/c.svg", "no folder")):
        [(status, _, error)] = ends(start({}, "--curve", str(tmp_path / name)))
        assert status == 2 and text in error, error


def test_settings_of_ranks_and_a_limit_are_reported() -> None:
    script = (
        "[ $HERRING_RANK = 1 ] && export HERRING_FLOWS=3; "
        "[ $HERRING_RANK = 2 ] && ulimit -n 60; "
        f"exec {' '.join(DOCTOR)} --json"
    )
    done = run("-n", "4", "--nodes", "2", "--no-prefix", "--", "bash", "-c", script)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    first, second = of_job(report)
    names = [host["name"] for host in report["hosts"]]
    assert (first["severity"], first["subject"]) == ("error", names[1])
    assert "may open 60 files" in first["what"]
    assert (second["severity"], second["subject"]) == ("warning", names[0])
    assert "On rank 1 HERRING_FLOWS is 3" in second["what"]


def test_listeners_keep_to_the_ports() -> None:
    done = run(
        *("-n", "2", "--nodes", "2", "--no-prefix", "-x", "HERRING_PORTS=21800-21840"),
        *("--", *DOCTOR, "--json"),
    )
    report = json.loads(done.stdout)
    ports = [port for host in report["hosts"] for port in host["ports"]]
    assert len(ports) == 4 and all(21800 <= port <= 21840 for port in ports), ports


def test_ranks_of_mpirun() -> None:
    def environment(rank: int) -> dict[str, str]:
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": f"doctor-{os.getpid()}",
        }

    (first, out, _), (second, nothing, _) = ends(*[start(environment(r), "--json") for r in (0, 1)])
    assert (first, second, nothing) == (0, 0, "")
    assert [host["ranks"] for host in json.loads(out)["hosts"]] == [[0, 1]]


def test_ranks_of_torchrun(port: int) -> None:
    pytest.importorskip("torch")

    def environment(rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }

    (first, out, error), (second, nothing, _) = ends(
        *[start(environment(rank), "--json") for rank in (0, 1)]
    )
    assert (first, second, nothing) == (0, 0, ""), error
    assert [host["ranks"] for host in json.loads(out)["hosts"]] == [[0, 1]]


def test_hosts_by_ssh(ssh: Path) -> None:  # noqa: F811
    [(status, out, error)] = ends(start({}, "-H", "a:2,b", "--json", "--gradients", "1G"))
    assert status == 0, out + error
    report = json.loads(out)
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1], [2]]
    assert report["provenance"]["options"]["gradients"] == 10**9
    [(status, out, error)] = ends(start({}, "-H", "a,refused"))
    assert (status, out) == (1, "") and "refused" in error


def test_a_rank_with_another_secret_says_so_and_is_missing(port: int) -> None:
    options = ("--time-limit", "15", "--json")
    first = start(by_hand(0, port), *options)
    other = start(by_hand(1, port, HERRING_SECRET="77" * 32), *options)
    (status, out, _), (refused, _, error) = ends(first, other)
    assert (status, refused) == (1, 1)
    assert "AuthenticationError" in error and "another secret" in error and "\n" not in error[:-1]
    report = json.loads(out)
    assert report["missing_ranks"] == [1] and of_job(report)[0]["subject"] == "rank 1"


def test_a_rank_waits_for_rank_0_only_for_its_time(port: int) -> None:
    [(status, out, error)] = ends(start(by_hand(1, port), "--time-limit", "5"))
    assert (status, out) == (1, "")
    assert f"for rank 0's doctor at 127.0.0.1:{port} (Connection refused)" in error


def test_a_rank_that_comes_twice_is_named(port: int) -> None:
    first = start(by_hand(0, port, size=3), "--time-limit", "15", "--json")
    others = [start(by_hand(1, port, size=3), "--time-limit", "15") for _ in range(2)]
    (status, out, _), *ended = ends(first, *others)
    assert (status, sorted(code for code, _, _ in ended)) == (1, [0, 2])
    assert "rank 0 refuses this process: Rank 1 has come twice" in "".join(e for _, _, e in ended)
    errors = [one["what"] for one in of_job(json.loads(out)) if one["severity"] == "error"]
    assert any("Rank 1 has come twice" in what for what in errors)


def test_a_process_that_is_killed_meanwhile_is_named(port: int) -> None:
    # The second process stops when it has introduced itself, and is killed then.
    first = start(by_hand(0, port, size=3), "--time-limit", "30", "--json")
    third = start(by_hand(2, port, size=3), "--time-limit", "30")
    program = (
        "import os, signal; from herring.doctor import agent, facts;"
        "facts.gather = lambda address: os.kill(os.getpid(), signal.SIGKILL);"
        "from herring.command.cli import main; main(['doctor', '--time-limit', '30'])"
    )
    second = warm.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **by_hand(1, port, size=3)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (status, out, _), (fine, _, _) = ends(first, third)
    assert second.wait(LIMIT) == -signal.SIGKILL
    assert (status, fine) == (1, 0)
    report = json.loads(out)
    silent = of_job(report)[0]
    assert silent["subject"] == report["hosts"][1]["name"]
    assert "stopped answering when it was asked for its facts" in silent["what"]
    rates = {(one["from"], one["to"]) for one in report["links"] if one["bits_per_second"]}
    names = [host["name"] for host in report["hosts"]]
    assert rates == {(names[0], names[2]), (names[2], names[0])}


def test_a_doctor_of_another_version_is_named(port: int) -> None:
    first = start(by_hand(0, port), "--time-limit", "15", "--json")
    program = (
        "from herring.doctor import agent; agent.VERSION = 7;"
        "from herring.command.cli import main; import sys; sys.exit(main(['doctor']))"
    )
    other = warm.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **by_hand(1, port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    (status, out, _), (refused, _, error) = ends(first, other)
    assert (status, refused) == (1, 2) and "speaks version 7" in error
    assert any("speaks version 7" in one["what"] for one in of_job(json.loads(out)))


def test_the_others_end_if_rank_0_does(port: int) -> None:
    program = (
        "import os, signal; from herring.doctor import hub;"
        "hub.Hub.examine = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "from herring.command.cli import main; main(['doctor'])"
    )
    first = warm.Popen([sys.executable, "-c", program], env={**os.environ, **by_hand(0, port)})
    [(status, out, error)] = ends(start(by_hand(1, port)))
    assert first.wait(LIMIT) == -signal.SIGKILL
    assert (status, out) == (1, "")
    assert "PeerLostError" in error and "lost rank 0" in error


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--time-limit", "1"], {}, "--time-limit '1' is too short: allowed are 5s or more"),
        (["--time-limit", "soon"], {}, "--time-limit 'soon' is not a time"),
        (["--gradients", "-3"], {}, "--gradients"),
        (["-H", "a b"], {}, "-H: 'a b' is not a host"),
        (["-H", ""], {}, "-H: there is no host in it"),
        (["--ssh-port", "22"], {}, "--ssh-port has a meaning only with -H or --hostfile"),
        (["-H", "a"], {"RANK": "0"}, "-H starts a job, but this process is a rank of one"),
        (["fast"], {}, "'fast' is one argument too many"),
        ([], {"HERRING_RANK": "0"}, "HERRING_SIZE"),
        ([], {"HERRING_RANK": "3", "HERRING_SIZE": "2"}, "HERRING_RANK=3 contradicts"),
        ([], {"HERRING_INTERFACE": "none0"}, "HERRING_INTERFACE=none0 is not valid"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    [(status, out, error)] = ends(start(environment, *arguments))
    assert (status, out) == (2, "")
    first, *rest = error.splitlines()
    assert first.startswith("herring doctor: ") and words in first, error
    assert all(line.startswith(("usage: ", "'herring doctor --help'")) for line in rest), error


def test_a_wrong_setting_is_an_error_of_this_host() -> None:
    [(status, out, _)] = ends(start({"HERRING_FLOWS": "many"}))
    said = " ".join(out.split())
    assert status == 1 and "No job starts with the settings of rank 0: HERRING_FLOWS=many" in said


def test_options_of_ssh_need_hosts() -> None:
    options = make_parser().parse_args(["doctor", "-x", "A=b"])
    with pytest.raises(ConfigurationError, match="--env has a meaning only with -H"):
        handle(options)
