"""`herring run -H` without a network: a program in place of ssh starts agents on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warm
from herring.launch.commands import module_command
from herring.launch.hosts import Host
from herring.launch.options import SshOptions
from herring.launch.ssh import ssh_command
from herring.rendezvous.network import is_reachable_address
from launched import HERRING, LIMIT, Job, gone, pids_of, run, shell

# A login shell there: its own environment, its own words at the beginning, another directory.
SSH = r"""#!/bin/bash
host=${@: -2:1}
echo "host=$host pid=$$" >> "$LOG"
printf '%s\n' "$@" >> "$LOG.arguments"
case $host in
  refused*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255;;
  locked*) echo "me@$host: Permission denied (publickey)." >&2; exit 255;;
  strange*) echo "Host key verification failed." >&2; exit 255;;
  nowhere*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255;;
  silent*) exec sleep 1000;;
  babbling*) exec yes;;
  older*) echo "herring-remote 0"; exec sleep 1000;;
esac
echo "Welcome to $host"
cd /
exec 3<&0
set -o pipefail
# Out of reach of whoever kills this: all that tells the agent so is the end of its input.
setsid -w env -i HOME="$HOME" PATH=/usr/bin:/bin HERRING_HOST_ID=$host THERE=$host \
  sh -c "${@: -1}" < <(exec cat <&3) | cat
"""
# A Python there without Herring.
BARE = f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n'


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file where the program in place of ssh notes whom it was asked for."""
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("HERRING_SSH", str(program))
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PWD", raising=False)
    with warm.real_processes():  # agents' ranks are real, and so are all others
        yield log


@pytest.fixture
def job(ssh: Path) -> Iterator[type[Job]]:
    started: list[Job] = []

    class Tracked(Job):
        def __init__(self, *arguments: str) -> None:
            super().__init__(*arguments)
            started.append(self)

    yield Tracked
    for each in started:
        each.process.kill()
        each.process.wait()
        each.process.stdout.close()


# What processes get, and what they say.


def test_ranks_stand_on_hosts_in_the_given_order(ssh: Path) -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    script = " ".join(f"$HERRING_{name}" for name in names)
    done = run("-H", "b:2,localhost:1,a:1", *shell(f"echo {script} ${{THERE-here}}; echo e >&2"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] 0 4 0 2 b",
        "[1] 1 4 1 2 b",
        "[2] 2 4 0 1 here",
        "[3] 3 4 0 1 a",
    ]
    said = [line for line in done.stderr.splitlines() if "[herring run]" not in line]
    assert sorted(said) == [f"[{rank}] e" for rank in range(4)]


def test_environment_and_directory(ssh: Path, tmp_path: Path) -> None:
    outer = {
        **os.environ,
        "HERRING_FLOWS": "2",
        "HERRING_RANK": "7",
        "HERRING_HOST_ID": "outer",
        "PRIVATE": "stays",
        "NAMED": "a b'c",
    }
    del outer["OMP_NUM_THREADS"]
    done = run(
        *("-H", "a:2", "-x", "NAMED", "--env", "GIVEN=x=y", "--start-timeout", "33"),
        *("--network-interface", "lo"),
        *shell(f"env > {tmp_path}/$HERRING_RANK; pwd"),
        env=outer,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[0] {tmp_path}", f"[1] {tmp_path}"]
    found = dict(
        line.split("=", 1) for line in (tmp_path / "0").read_text().splitlines() if "=" in line
    )
    assert (found["NAMED"], found["GIVEN"], found["HERRING_FLOWS"]) == ("a b'c", "x=y", "2")
    assert found["PATH"] == outer["PATH"]
    assert found["HERRING_HOST_ID"] == "a"  # as the host has it
    assert found["HERRING_CONNECT_TIMEOUT"] == "33"
    assert found["HERRING_INTERFACE"] == "lo"
    assert found["HERRING_RENDEZVOUS"].startswith("127.0.0.1:")  # of that interface
    assert found["PYTHONUNBUFFERED"] == "1"
    assert int(found["OMP_NUM_THREADS"]) >= 1
    assert not {"PRIVATE", "HERRING_SSH", "LOG"} & found.keys()


SPY = """
import os, pathlib
if os.environ["HERRING_RANK"] == "0":
    secret = os.environ["HERRING_SECRET"].encode()
    seen = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                content = (process / name).read_bytes()
            except OSError:
                continue
            if secret in content:
                command = (process / "cmdline").read_bytes()
                seen.append((name, b"spy" in command or b"\\0server\\0" in command))
    print(len(secret), sorted(seen))
import herring
herring.init()
herring.barrier()
herring.shutdown()
"""


def test_the_secret_is_in_no_command_line(ssh: Path, tmp_path: Path) -> None:
    path = tmp_path / "spy.py"
    path.write_text(SPY)
    done = run("-H", "a:1,b:1", "--servers", "1", "--", sys.executable, str(path))
    assert done.returncode == 0, done.stderr
    found = re.search(r"\[0\] 64 (\[.*\])", done.stdout).group(1)
    # In the environment of the processes of the job, which only their user can read, and nowhere.
    assert set(re.findall(r"\('(\w+)', (\w+)\)", found)) == {("environ", "True")}


def test_a_job_across_hosts(ssh: Path, tmp_path: Path) -> None:
    script = (
        "import herring, numpy as np; herring.init(); a = np.full(99_999, herring.rank(), 'f4');"
        "herring.allreduce(a); dedicated = sum(s['dedicated'] for s in herring.stats()['servers']);"
        "print(a.min(), a.max(), herring.num_nodes(), dedicated); herring.shutdown()"
    )
    for options, expected in (
        (["-H", "a:2,b:1"], "1.0 1.0 2 0"),
        (["-H", "localhost:1,b:2"], "1.0 1.0 2 0"),
        (["-H", "a:2,b:1,c:1,localhost:1", "-n", "3", "--servers", "2"], "1.0 1.0 2 2"),
    ):
        done = run(*options, "--", sys.executable, "-c", script)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"[{rank}] {expected}" for rank in range(3)]


def test_two_names_of_a_host_are_refused_before_anything_starts(
    ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = shell(f"touch {tmp_path}/started")
    program = tmp_path / "ssh"
    program.write_text(SSH.replace("HERRING_HOST_ID=$host", "HERRING_HOST_ID=one"))
    done = run("-H", "a:1,b:1", *script)
    assert done.returncode == 2 and "a and b are the same host: name it once" in done.stderr
    monkeypatch.setenv("HERRING_HOST_ID", "one")
    done = run("-H", "localhost:1,a:1", *script)
    assert done.returncode == 2 and "localhost and a are the same host" in done.stderr
    assert not (tmp_path / "started").exists()
    done = run("-H", "a:1,b:1", "-n", "1", "--servers", "1", *shell("echo runs"))
    assert done.returncode == 0 and "runs" in done.stdout, done.stderr  # b has a server only


def test_a_script_of_torchrun_runs_there_as_it_is(ssh: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, torch.distributed as dist; dist.init_process_group('gloo'); "
        "t = torch.ones(1); dist.all_reduce(t); print(int(t)); dist.destroy_process_group()"
    )
    done = run("-H", "a:1,b:1", "--network-interface", "lo", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"]
    assert "none of the 2 workers has called herring.init()" in done.stderr


def test_who_has_joined_there_and_what_the_cause_was(ssh: Path) -> None:
    code = (
        "import herring; herring.init(); r = herring.rank()\n"
        "if r == 1: raise ValueError('bad', r)\n"
        "herring.barrier()"
    )
    options = ["-H", "a:1,b:1", "--require-init", "--network-interface", "lo"]
    done = run(*options, "--", sys.executable, "-c", code.replace("1:", "9:"))
    assert (done.returncode, done.stderr) == (0, "")
    done = run(*options, "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert re.search(
        r"the cause: rank 1 \(process \d+ on b\) failed first, at \S+: ValueError: \('bad', 1\)$",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_import_horovod_there(ssh: Path) -> None:
    script = "import horovod; print(horovod.__name__)"
    done = run("-H", "a:1", "--horovod", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "[0] herring.horovod\n"), done.stderr


def test_output_files(ssh: Path, tmp_path: Path) -> None:
    folder = tmp_path / "output"
    done = run(
        *("-H", "a:1,b:1", "--output-filename", str(folder)),
        *shell("printf out$HERRING_RANK; echo err >&2"),
    )
    assert done.returncode == 0, done.stderr
    for rank in "01":
        assert (folder / f"rank.{rank}" / "stdout").read_text() == f"out{rank}"
        assert (folder / f"rank.{rank}" / "stderr").read_text() == "err\n"


def test_much_output_arrives_whole(ssh: Path) -> None:
    script = (
        "head -c 6000000 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/zero | tr '\\0' '\\n'"
    )
    done = run("-H", "a:2", "--no-prefix", *shell(script))
    assert done.returncode == 0
    assert done.stdout.count("x") == 12_000_000
    assert done.stdout.count("\n") >= 200_002


def test_ssh_is_told_port_and_key_and_never_to_ask(ssh: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    done = run("-H", "me@a:1", "-p", "2222", "-i", str(key), "--", "true")
    assert done.returncode == 0, done.stderr
    arguments = ssh.with_suffix(".arguments").read_text().splitlines()
    for pair in (["-o", "BatchMode=yes"], ["-p", "2222"], ["-i", str(key)]):
        assert any(arguments[at : at + 2] == pair for at in range(len(arguments)))
    assert arguments[-2] == "me@a"
    assert arguments[-1].endswith(shlex.join(module_command("herring.launch.agent")))


def test_what_a_shell_reads_stays_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a b;true")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    command = ssh_command(Host("a", 1, False), SshOptions(python="/my python"), 7.4)
    agent = shlex.join(module_command("herring.launch.agent", "/my python"))
    assert command[-1] == f"exec env 'PYTHONPATH=/a b;true' {agent}"
    assert agent.startswith("'/my python' ")
    assert "ConnectTimeout=7" in command


# Hosts that cannot take part.


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("refused", ["refused cannot be reached", "sshd", "Connection refused"]),
        ("locked", ["locked refuses the login", "ssh-copy-id", "-i FILE", "Permission denied"]),
        ("strange", ["strange is not known to ssh", "'ssh strange'"]),
        ("nowhere", ["nowhere has no address", "Could not resolve"]),
        ("silent", ["silent has not answered in 15 s (--start-timeout)"]),
        ("babbling", ["babbling", "not an agent of herring run"]),
        ("older", ["older: its Herring has another version"]),
    ],
)
def test_a_host_that_cannot_be_reached(ssh: Path, host: str, words: list[str]) -> None:
    limit = "15" if host == "silent" else "300"
    done = run("-H", f"localhost:1,a:1,{host}:1", "--start-timeout", limit, "--", "echo", "started")
    assert done.returncode == 255
    assert not done.stdout  # nobody has begun
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("herring run:") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert gone([int(pid) for pid in re.findall(r"pid=(\d+)", ssh.read_text())])


def test_the_setting_bounds_the_start_where_no_option_does(ssh: Path) -> None:
    env = {**os.environ, "HERRING_CONNECT_TIMEOUT": "1.5"}
    done = run("-H", "localhost:1,silent:1", "--", "true", env=env)
    assert done.returncode == 255
    assert "silent has not answered in 1.5 s" in done.stderr
    done = run(
        "-H", "localhost:1,silent:1", "--", "true", env={**env, "HERRING_CONNECT_TIMEOUT": "x"}
    )
    assert done.returncode == 2
    assert "HERRING_CONNECT_TIMEOUT=x is not valid: allowed is seconds" in done.stderr


def test_a_host_without_herring(ssh: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(BARE)
    bare.chmod(0o755)
    for python, reason in ((str(bare), "No module named"), ("/no/python", "/no/python")):
        done = run("-H", "a:1,b:1", "--remote-python", python, "--", "echo", "started")
        assert (done.returncode, done.stdout) == (255, ""), done.stderr
        assert f"has no Herring at {python}" in done.stderr
        assert reason in done.stderr
        assert "--remote-python" in done.stderr


def test_a_command_that_is_not_there(ssh: Path) -> None:
    done = run("-H", "a:1,b:1", "--", "no-such-program-here")
    assert (done.returncode, done.stdout) == (127, "")
    assert re.search(r"herring run: [ab]: no-such-program-here: no such program", done.stderr)


def test_an_executable_that_is_none(ssh: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    done = run("-H", "a:1,b:1", "--", str(path))
    assert done.returncode == 126
    assert "cannot start rank" in done.stderr


# How it ends.

WAIT = "echo pid=$$; (sleep 1000 & echo pid=$!; wait) & echo pid=$!; wait"


def test_the_first_failure_decides_and_ends_the_others_everywhere(job: type[Job]) -> None:
    script = f"[ $HERRING_RANK != 2 ] || {{ read x < /dev/null; exit 7; }}; {WAIT}"
    each = job("-H", "localhost:1,a:1,b:1,c:1", *shell(script))
    status, output = each.end()
    assert status == 7
    assert re.search(
        r"\[herring run\] error: rank 2 \(process \d+ on b\) exited with status 7", output
    )
    assert output.count("[herring run]") == 1
    assert gone(pids_of(output.splitlines()))


def test_death_by_a_signal_is_named(ssh: Path) -> None:
    done = run("-H", "a:1,b:1", *shell("[ $HERRING_RANK = 0 ] && kill -SEGV $$; exec sleep 1000"))
    assert done.returncode == 128 + signal.SIGSEGV
    assert re.search(r"rank 0 \(process \d+ on a\) was killed by SIGSEGV", done.stderr)


KILL_THE_SERVER = """
import os, pathlib, signal, time
job = os.environ["HERRING_JOB"].encode()
while True:
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            ours = job + b"-server-0" in (process / "environ").read_bytes()
            if ours and b"--rendezvous" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.05)
"""


def test_a_server_that_dies_ends_the_job(ssh: Path) -> None:
    options = ["-H", "a:1,b:1", "-n", "1", "--servers", "1"]
    done = run(*options, "--", sys.executable, "-c", KILL_THE_SERVER)
    assert done.returncode == 128 + signal.SIGKILL
    assert re.search(r"\] error: server 0 \(process \d+ on b\) was killed by SIGK", done.stderr)


def test_a_process_deaf_to_sigterm_is_killed(ssh: Path) -> None:
    script = "[ $HERRING_RANK = 0 ] && exit 1; trap '' TERM; while :; do sleep 0.1; done"
    done = run("-H", "a:1,b:1", "--grace", "0.3", *shell(script))
    assert done.returncode == 1


def test_keep_going(ssh: Path) -> None:
    script = "[ $HERRING_RANK = 0 ] && exit 3; sleep 0.3; echo done"
    done = run("-H", "a:1,b:1", "--keep-going", *shell(script))
    assert done.returncode == 3
    assert "[1] done" in done.stdout


def test_time_limit(ssh: Path) -> None:
    done = run("-H", "a:1,b:1", "--timeout", "10", "--", "sleep", "1000")
    assert done.returncode == 124
    assert "rank 0, rank 1" in done.stderr
    done = run("-H", "silent:1", "--timeout", "0.5", "--", "sleep", "1000")
    assert done.returncode == 124


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_every_worker(job: type[Job], number: signal.Signals) -> None:
    name = number.name[3:]
    script = f"trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    each = job("-H", "localhost:1,a:1,b:1", *shell(script))
    assert sorted(each.lines(3)) == ["[0] ready", "[1] ready", "[2] ready"]
    each.process.send_signal(number)
    status, output = each.end()
    assert status == 128 + number
    for rank in (0, 1, 2):
        assert f"[{rank}] caught {name}" in output


def test_ctrl_c_while_a_host_is_silent(job: type[Job], ssh: Path) -> None:
    each = job("-H", "silent:1", "--", "true")
    while "pid=" not in ssh.read_text():
        assert each.process.poll() is None
    each.process.send_signal(signal.SIGINT)
    status, _ = each.end()
    assert status == 128 + signal.SIGINT
    assert gone(pids_of([ssh.read_text()]))


def test_kill_9_of_the_launcher_leaves_nothing(job: type[Job]) -> None:
    each = job("-H", "a:2,b:1", *shell(WAIT))
    pids = pids_of(each.lines(9))
    assert len(set(pids)) == 9
    each.process.kill()
    assert gone(pids)


def test_a_connection_that_breaks_ends_the_job(job: type[Job], ssh: Path) -> None:
    each = job("-H", "localhost:1,a:1,b:1", *shell(WAIT))
    pids = pids_of(each.lines(9))
    os.kill(int(re.search(r"host=b pid=(\d+)", ssh.read_text()).group(1)), signal.SIGKILL)
    status, output = each.end()
    assert status == 255
    assert re.search(
        r"\[herring run\] error: b is lost: its ssh has ended .*; stopping the other 2", output
    )
    assert gone(pids)


def test_what_leaves_its_group_ends_with_the_job(job: type[Job]) -> None:
    each = job("-H", "a:1", *shell("setsid sleep 1000 > /dev/null 2>&1 & echo pid=$!; exit 0"))
    pids = pids_of(each.lines(1))
    assert each.end()[0] == 0
    assert gone(pids)


def test_a_reader_that_leaves_ends_the_job(job: type[Job]) -> None:
    each = job("-H", "a:2", *shell("echo pid=$$; exec yes"))
    line = each.lines(1)
    each.process.stdout.close()
    assert each.process.wait(LIMIT) == 128 + signal.SIGPIPE
    assert gone(pids_of(line))


def test_the_directory_is_called_as_the_shell_calls_it(ssh: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for named, expected in ((str(link), link), ("/", tmp_path)):
        done = run("-H", "a:1", *shell("pwd"), cwd=link, env={**os.environ, "PWD": named})
        assert done.stdout == f"[0] {expected}\n", done.stderr


def test_a_working_directory_that_is_gone(ssh: Path, tmp_path: Path) -> None:
    gone_folder = tmp_path / "gone"
    gone_folder.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, str(gone_folder), *HERRING, "run", "-H", "a:1", "--", "/bin/true"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no working directory" in done.stderr


@pytest.mark.parametrize("address", ["", "UNKNOWN", "127.0.0.1", "::1", "fe80::1%lo", "192.0.2.99"])
def test_addresses_that_are_of_no_use_to_others(address: str) -> None:
    assert not is_reachable_address(address)
