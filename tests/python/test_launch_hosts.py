"""-H and --hostfile: what they say, what they refuse, and where ranks and servers stand."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from herring.command.options import add_hosts
from herring.errors import ConfigurationError
from herring.launch.environment import job_variables, passed_environment, tasks
from herring.launch.hosts import lay_out, read_hosts
from herring.launch.options import RunOptions, SshOptions

SECRET = "HERRING_SECRET"


def named(text: str) -> list[tuple[str, int, bool]]:
    return [(host.name, host.slots, host.local) for host in read_hosts(text, None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node.invalid:4", [("node.invalid", 4, False)]),
        ("node.invalid", [("node.invalid", 1, False)]),
        (
            "a.invalid:2, me@b.invalid:3,",
            [("a.invalid", 2, False), ("me@b.invalid", 3, False)],
        ),
        ("[2001:db8::1]:2,192.0.2.77:1", [("2001:db8::1", 2, False), ("192.0.2.77", 1, False)]),
        ("[::1]:2", [("::1", 2, True)]),
        ("me@[2001:db8::1]:2", [("me@2001:db8::1", 2, False)]),
        ("me@[2001:db8::1]", [("me@2001:db8::1", 1, False)]),
        ("a.invalid:1,a.invalid:2", [("a.invalid", 3, False)]),
        ("localhost:1,127.0.0.1:2", [("localhost", 3, True)]),
        (f"{socket.gethostname()}:2", [(socket.gethostname(), 2, True)]),
        ("me@localhost:2", [("me@localhost", 2, False)]),
    ],
)
def test_hosts(text: str, expected: list[tuple[str, int, bool]]) -> None:
    assert named(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no host", "host1:4,host2:4"]),
        ("a.invalid:0", ["a.invalid", "'0' slots", "1 or more"]),
        ("a.invalid:", ["a.invalid", "'' slots"]),
        ("a.invalid:many", ["'many' slots"]),
        ("a.invalid:-1", ["'-1' slots"]),
        ("-oProxyCommand=true:1", ["'-oProxyCommand=true' is not a host"]),
        ("-Ffile@host:1", ["'-Ffile@host' is not a host"]),
        ("a b:1", ["'a b' is not a host"]),
        ("$(true):1", ["is not a host", "USER@HOST:SLOTS"]),
        ("2001:db8::1", ["'2001:db8::1' is not a host", "[IPV6]:SLOTS"]),
        ("me@2001:db8::1", ["is not a host", "USER@[IPV6]:SLOTS"]),
        ("me@[2001:db8::1", ["is not a host"]),
        ("@[2001:db8::1]:2", ["is not a host"]),
        ("-me@[2001:db8::1]:2", ["'-me@2001:db8::1' is not a host"]),
        ("a.invalid:1,b.invalid:1,a.invalid:1", ["a.invalid appears in two places"]),
    ],
)
def test_wrong_hosts(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_hosts(text, None)
    assert all(word in str(error.value) for word in ["-H", *words]), error.value


@pytest.mark.parametrize("option", ["--hostfile", "-hostfile"])
def test_option_of_a_hostfile(option: str) -> None:
    parser = argparse.ArgumentParser()
    add_hosts(parser)
    assert parser.parse_args([option, "some/file", "-H", "a:1"]).hostfile == Path("some/file")


def test_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# four hosts\n\na.invalid slots=2\nb.invalid   slots = 3  max_slots=4 # fast\n"
        "me@c.invalid:5\n[2001:db8::1]:2\nd.invalid\n"
        "me@[2001:db8::2] slots=3\n[2001:db8::3] slots=4\n"
    )
    assert [(host.name, host.slots) for host in read_hosts(None, path)] == [
        ("a.invalid", 2),
        ("b.invalid", 3),
        ("me@c.invalid", 5),
        ("2001:db8::1", 2),
        ("d.invalid", 1),
        ("me@2001:db8::2", 3),
        ("2001:db8::3", 4),
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [("a.invalid slots=x", "'x' slots"), ("a.invalid more", "not a host"), ("\n#\n", "no host")],
)
def test_wrong_hostfiles(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"--hostfile {path}: .*{word}"):
        read_hosts(None, path)


def test_hostfile_that_is_not_there_and_both() -> None:
    with pytest.raises(ConfigurationError, match="--hostfile /nowhere: No such file"):
        read_hosts(None, Path("/nowhere"))
    with pytest.raises(ConfigurationError, match="give only one of them"):
        read_hosts("a.invalid", Path("/nowhere"))


def placed(text: str, workers: int | None, servers: int) -> tuple[list[tuple[str, int]], list[str]]:
    layout = lay_out(read_hosts(text, None), workers, servers)
    return [(host.name, count) for host, count in layout.workers], [h.name for h in layout.servers]


def test_ranks_fill_hosts_in_order_and_servers_take_what_is_left() -> None:
    hosts = "a.invalid:2,b.invalid:2,c.invalid:1,d.invalid:1"
    full = [("a.invalid", 2), ("b.invalid", 2), ("c.invalid", 1), ("d.invalid", 1)]
    assert placed(hosts, None, 0) == (full, [])
    assert placed(hosts, 3, 0) == ([("a.invalid", 2), ("b.invalid", 1)], [])
    assert placed(hosts, 4, 3) == (full[:2], ["c.invalid", "d.invalid", "c.invalid"])
    everywhere = ["a.invalid", "b.invalid", "c.invalid", "d.invalid", "a.invalid"]
    assert placed(hosts, None, 5) == (full, everywhere)
    # A host with neither is left alone.
    layout = lay_out(read_hosts(hosts, None), 2, 0)
    assert [host.name for host in layout.remote] == ["a.invalid"]


@pytest.mark.parametrize(
    ("workers", "servers", "word"),
    [
        (7, 0, "-n 7: the hosts have only 6 slots"),
        (0, 0, "-n 0 is not valid"),
        (-1, 0, "-n -1"),
        (2, -1, "--servers -1"),
        (2, 70000, "--servers 70000 .* 0 to 65535"),
    ],
)
def test_numbers_out_of_range(workers: int, servers: int, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        lay_out(read_hosts("a.invalid:2,b.invalid:4", None), workers, servers)


def test_what_each_process_is_told() -> None:
    options = RunOptions(["true"], lay_out(read_hosts("a.invalid:2,b.invalid:1", None), None, 1))
    every = list(
        tasks(options, job_variables(options, "192.0.2.1:7", "ab" * 32), {"MASTER_PORT": "8"})
    )
    assert [(task.name, task.host.name, task.rank) for task in every] == [
        ("server 0", "a.invalid", None),
        ("rank 0", "a.invalid", 0),
        ("rank 1", "a.invalid", 1),
        ("rank 2", "b.invalid", 2),
    ]
    places = [
        tuple(task.environment.get(f"HERRING_{name}") for name in ("RANK", "SIZE", "LOCAL_SIZE"))
        for task in every
    ]
    assert places == [(None, None, None), ("0", "3", "2"), ("1", "3", "2"), ("2", "3", "1")]
    assert len({task.environment[SECRET] for task in every}) == 1
    assert {task.environment["HERRING_RENDEZVOUS"] for task in every} == {"192.0.2.1:7"}
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT")
    assert [tuple(map(task.environment.get, names)) for task in every] == [
        (None,) * 5,
        ("0", "3", "0", "0", "8"),
        ("1", "3", "1", "0", "8"),
        ("2", "3", "0", "1", "8"),
    ]
    # Workers keep the identity of their host; only a server has one of its own.
    assert ["HERRING_HOST_ID" in task.environment for task in every] == [True] + [False] * 3


def test_variables_that_travel() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/me",
        "HERRING_FLOWS": "2",
        "HERRING_SECRET": "ab" * 32,
        "HERRING_RANK": "3",
        "HERRING_HOST_ID": "this",
        "HERRING_SSH": "ssh -v",
        "NCCL_DEBUG": "INFO",
    }
    passed, chosen = passed_environment(environ, ["NCCL_DEBUG", "A=b=c", "EMPTY="])
    assert chosen == {"NCCL_DEBUG": "INFO", "A": "b=c", "EMPTY": ""}
    assert passed == {"PATH": "/bin", "HERRING_FLOWS": "2", **chosen}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("NOT_SET", "-x NOT_SET: the variable is not set"),
        ("=a", "NAME or NAME=VALUE"),
        ("a b=c", "NAME or NAME=VALUE"),
        ("HERRING_RANK=1", "-x HERRING_RANK: herring run sets it itself"),
        ("HERRING_SECRET=ab", "herring run sets it itself"),
    ],
)
def test_wrong_variables(text: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        passed_environment({}, [text])


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"nodes": 2}, "--nodes 2: each host of -H is a node"),
        ({"ssh": SshOptions(port=0)}, "-p 0 is not valid: allowed is an integer from 1 to 65535"),
        ({"ssh": SshOptions(command=["/no/ssh", "-v"])}, "--ssh-command /no/ssh -v: no such"),
        ({"ssh": SshOptions(identity=Path("/no/key"))}, "-i /no/key: no such file"),
    ],
)
def test_wrong_options_of_several_hosts(more: dict[str, object], word: str) -> None:
    layout = lay_out(read_hosts("a.invalid:2,b.invalid:2", None), None, 0)
    ssh = {"ssh": SshOptions(command=["true"])}
    with pytest.raises(ConfigurationError, match=word):
        RunOptions(["true"], layout, **{**ssh, **more}).check()
