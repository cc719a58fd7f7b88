"""`herring run` with plain commands: output, exit status, failures, signals, and no orphans."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launched import HERRING, LIMIT, Job, gone, pids_of, run, shell

RANKS = ["HERRING_RANK", "HERRING_SIZE", "HERRING_LOCAL_RANK", "HERRING_LOCAL_SIZE"]


@pytest.fixture
def job() -> Iterator[type[Job]]:
    started: list[Job] = []

    class Tracked(Job):
        def __init__(self, *arguments: str, **options: int) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    yield Tracked
    for each in started:
        each.process.kill()
        each.process.wait()
        if each.process.stdout:
            each.process.stdout.close()


def test_servers_take_no_modules_from_the_current_directory(tmp_path: Path) -> None:
    """Who can write there would get the job's secret."""
    for name in ("argparse", "secrets", "queue", "socket"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    herring = Path(sys.executable).with_name("herring")
    script = "import sys; sys.path.remove(''); import herring; herring.init(); herring.barrier()"
    done = subprocess.run(
        [herring, "run", "-n", "1", "--servers", "1", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


# What the workers get.


def test_ranks_stand_in_blocks_on_nodes() -> None:
    done = run(
        "-n", "5", "--nodes", "2", *shell("echo " + " ".join(f"${name}" for name in RANKS))
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] 0 5 0 3",
        "[1] 1 5 1 3",
        "[2] 2 5 2 3",
        "[3] 3 5 0 2",
        "[4] 4 5 1 2",
    ]


def test_environment(tmp_path: Path) -> None:
    outer = {
        **os.environ,
        "HERRING_HOST_ID": "outer",
        "HERRING_SECRET": "ab" * 16,
        "HERRING_RANK": "7",
        "HERRING_LOG_LEVEL": "debug",
        "OMP_NUM_THREADS": "5",
    }
    script = 'env | grep -E "^(HERRING|OMP|PYTHONUNB)" > $0/$HERRING_RANK'
    done = run("-n", "2", "--nodes", "2", *shell(script), str(tmp_path), env=outer)
    assert done.returncode == 0, done.stderr
    first, second = (
        dict(line.split("=", 1) for line in (tmp_path / rank).read_text().splitlines())
        for rank in "01"
    )
    assert first["HERRING_SECRET"] == second["HERRING_SECRET"] != outer["HERRING_SECRET"]
    assert len(bytes.fromhex(first["HERRING_SECRET"])) == 32
    assert first["HERRING_HOST_ID"] != second["HERRING_HOST_ID"]
    assert "outer" not in first["HERRING_HOST_ID"]
    assert first["HERRING_RENDEZVOUS"] == second["HERRING_RENDEZVOUS"]
    assert first["HERRING_RENDEZVOUS"].startswith("127.0.0.1:")
    assert "HERRING_RENDEZVOUS_FD" not in second
    assert first["HERRING_SERVERS"] == "0"
    # What the user has set otherwise stays.
    assert (first["HERRING_LOG_LEVEL"], first["OMP_NUM_THREADS"]) == ("debug", "5")
    assert first["PYTHONUNBUFFERED"] == "1"


def test_the_secret_of_a_file_is_that_of_the_job(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4 + "\n")
    secret.chmod(0o600)
    environment = {**os.environ, "HERRING_SECRET_FILE": str(secret)}
    script = "echo $HERRING_SECRET ${HERRING_SECRET_FILE-none}"
    done = run("-n", "1", *shell(script), env=environment)
    assert done.stdout == f"[0] {secret.read_text().strip().encode().hex()} none\n"
    assert done.stderr == ""
    secret.chmod(0o644)
    done = run("-n", "1", *shell("true"), env=environment)
    assert done.returncode == 0 and "can be read or written by others" in done.stderr
    for text, problem in (("short", "holds 5 bytes"), ("ab" * 1025, "are at most 2048")):
        secret.write_text(text)
        done = run("-n", "1", *shell("echo begun"), env=environment)
        assert (done.returncode, done.stdout) == (2, "") and problem in done.stderr, done.stderr
    secret.unlink()
    done = run("-n", "1", *shell("echo begun"), env=environment)
    assert (done.returncode, done.stdout) == (2, "") and "cannot be read" in done.stderr


def test_one_node_keeps_the_hosts_identity() -> None:
    assert run("-n", "1", *shell("echo ${HERRING_HOST_ID-unset}")).stdout == "[0] unset\n"


def test_rank_0_inherits_the_listening_socket() -> None:
    script = (
        "import os, socket\n"
        "from herring.rendezvous.detect import detect\n"
        "from herring.rendezvous.meet import meet\n"
        "worker = detect(os.environ)\n"
        "meeting = meet(worker)\n"
        "fd = meeting.take_descriptor()\n"
        "if worker.rank == 0:\n"
        "    listener = socket.socket(fileno=fd)\n"
        "    peer, _ = listener.accept()\n"
        "    print(peer.recv(100).decode())\n"
        "else:\n"
        "    host, port = meeting.address.split(':')\n"
        "    with socket.create_connection((host, int(port))) as peer:\n"
        "        peer.sendall(b'hello from 1')\n"
    )
    done = run("-n", "2", "--timeout", "50", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "[0] hello from 1\n"), done.stderr


# Output.


def test_lines_do_not_mix_and_streams_stay_apart() -> None:
    script = (
        "for i in 1 2 3 4 5 6 7 8; do printf a; printf 'b%s\\n' $i; echo e$i >&2; done; printf end"
    )
    done = run("-n", "4", *shell(script))
    assert done.returncode == 0
    for rank in range(4):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] ab{i}" for i in range(1, 9)] + [f"[{rank}] end"]
        mine = [line for line in done.stderr.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] e{i}" for i in range(1, 9)]
    assert len(done.stdout.splitlines()) == 36


def test_no_prefix() -> None:
    assert run("-n", "2", "--no-prefix", *shell("echo hello")).stdout == "hello\nhello\n"


@pytest.mark.parametrize("option", ["-prefix-timestamp", "--prefix-output-with-timestamp"])
def test_lines_with_the_time_of_horovodrun(option: str) -> None:
    before = int(time.time())
    done = run("-n", "2", option, *shell("echo hello; echo error >&2"))
    for text, word in ((done.stdout, "hello"), (done.stderr, "error")):
        lines = [line for line in text.splitlines() if "[herring run]" not in line]
        assert sorted(line[24:] for line in lines) == [f"[{rank}] {word}" for rank in range(2)]
        for line in lines:
            assert before <= time.mktime(time.strptime(line[:24])) <= time.time()


def test_much_output_arrives_whole() -> None:
    script = (
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/zero | tr '\\0' '\\n'"
    )
    done = run("-n", "1", "--no-prefix", *shell(script))
    assert done.returncode == 0
    assert done.stdout.count("x") == 3_000_000
    assert done.stdout.count("\n") >= 100_001


def on_a_terminal(
    *arguments: str,
    env: dict[str, str] | None = None,
    answers: list[tuple[bytes, Path]] | None = None,
) -> tuple[int, bytes]:
    """Runs the launcher on a pseudo-terminal; its exit status and all it showed.

    Once it shows the first of `answers`, a line goes to the FIFO beside it, and so on.
    """
    answers = list(answers or [])
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*HERRING, "run", *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**os.environ, "TERM": "xterm", **(env or {})},
        start_new_session=True,
    )
    os.close(inner)
    shown = b""
    try:
        while select.select([outer], [], [], LIMIT)[0]:
            try:
                data = os.read(outer, 65536)
            except OSError:
                break
            shown += data
            if answers and answers[0][0] in shown:
                answers.pop(0)[1].write_text("go on\n")
        return process.wait(LIMIT), shown
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def test_a_terminal_shows_colours_and_lets_rank_0_have_one() -> None:
    script = "[ -t 1 ] && echo tty=$HERRING_RANK; [ $HERRING_RANK != 0 ] || stty size <&1; exit 0"
    status, shown = on_a_terminal("-n", "2", *shell(script))
    assert status == 0
    assert re.search(rb"\x1b\[36m\[0\]\x1b\[39m tty=0\r\n", shown)
    assert b"tty=1" not in shown
    assert re.search(rb"\[0\]\x1b\[39m \d+ \d+\r\n", shown)
    status, shown = on_a_terminal("-n", "2", *shell(script), env={"NO_COLOR": "1"})
    assert b"[0] tty=0\r\n" in shown
    assert b"\x1b" not in shown


def test_a_progress_bar_of_rank_0_survives_lines_of_others(tmp_path: Path) -> None:
    # Rank 1 speaks while the bar stands at 10 %, and rank 0 goes on once that is to be seen.
    bar, line = tmp_path / "0", tmp_path / "1"
    os.mkfifo(bar)
    os.mkfifo(line)
    script = (
        'if [ $HERRING_RANK = 0 ]; then printf "\\r10%%"; read x < $0/0;'
        ' printf "\\r\\033[2K99%%\\n"; else read x < $0/1; echo other; fi'
    )
    status, shown = on_a_terminal(
        *("-n", "2", "--timeout", "50", *shell(script), str(tmp_path)),
        env={"NO_COLOR": "1"},
        answers=[(b"10%", line), (b"[1] other", bar)],
    )
    assert status == 0, shown
    assert shown.startswith(b"\r[0] 10%")
    assert b"\r\x1b[2K[0] 99%\r\n" in shown
    assert b"[1] other\r\n" in shown


# How it ends.


def test_success() -> None:
    assert run("-n", "2", "--", "true").returncode == 0


def test_the_first_failure_decides_and_ends_the_others() -> None:
    done = run("-n", "3", *shell("[ $HERRING_RANK = 1 ] && exit 7; exec sleep 1000"))
    assert done.returncode == 7
    assert re.search(
        r"^[\d-]{10} [\d:.]{12} \[herring run\] error: "
        r"rank 1 \(process \d+\) exited with status 7; stopping the other 2$",
        done.stderr,
        re.MULTILINE,
    )
    assert done.stderr.count("[herring run]") == 1


def test_the_others_may_say_why_they_fail(tmp_path: Path) -> None:
    # Worker 1 leaves its number. Once the process is gone, the launcher knows of its death.
    script = """
    [ $HERRING_RANK = 1 ] && echo $$ > pid.part && mv pid.part pid && kill -9 $$
    while ! [ -e pid ] || kill -0 $(cat pid) 2> /dev/null; do :; done
    sleep 0.05
    echo "has waited for rank 1" >&2
    exit 1
    """
    # They have half a second. A machine may be too busy for that.
    code = (
        "from herring.command import cli\nfrom herring.launch import ending\n"
        "ending._WORDS_SECONDS = 600\n"
        "raise SystemExit(cli.main())"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "run",
            "-n",
            "2",
            "--grace",
            "600",
            *shell(f"cd {tmp_path}; {script}"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGKILL
    assert "[0] has waited for rank 1" in done.stderr


def test_death_by_a_signal_is_named() -> None:
    done = run("-n", "2", *shell("[ $HERRING_RANK = 0 ] && kill -SEGV $$; exec sleep 1000"))
    assert done.returncode == 128 + signal.SIGSEGV
    assert "rank 0" in done.stderr
    assert "was killed by SIGSEGV (signal 11)" in done.stderr


def test_keep_going() -> None:
    done = run(
        "-n", "2", "--keep-going", *shell("[ $HERRING_RANK = 0 ] && exit 3; sleep 0.3; echo done")
    )
    assert done.returncode == 3
    assert "[1] done" in done.stdout


def test_a_process_deaf_to_sigterm_is_killed() -> None:
    script = "[ $HERRING_RANK = 0 ] && exit 1; trap '' TERM; while :; do sleep 0.1; done"
    done = run("-n", "2", "--grace", "0.3", *shell(script))
    assert done.returncode == 1


def test_time_limit() -> None:
    done = run("-n", "2", "--timeout", "2", "--", "sleep", "1000")
    assert done.returncode == 124
    assert re.search(r"2 s \(--timeout\): rank 0, rank 1", done.stderr)


def test_a_reader_that_leaves_ends_the_job(job: type[Job]) -> None:
    each = job("-n", "2", "--", "bash", "-c", "echo pid=$$; exec yes")
    line = each.lines(1)
    each.process.stdout.close()
    each.process.stdout = None
    assert each.process.wait(LIMIT) == 128 + signal.SIGPIPE
    assert gone(pids_of(line))


# Signals and orphans.

WAIT = "echo pid=$$; (sleep 1000 & echo pid=$!; wait) & echo pid=$!; wait"


def test_kill_9_of_the_launcher_leaves_nothing(job: type[Job]) -> None:
    each = job("-n", "2", *shell(WAIT))
    pids = pids_of(each.lines(6))
    assert len(set(pids)) == 6
    each.process.kill()
    assert gone(pids)


def test_what_leaves_its_group_ends_with_the_job(job: type[Job]) -> None:
    # The grandchild sits in a session of its own and holds no pipe of the launcher.
    each = job("-n", "1", *shell("setsid sleep 1000 > /dev/null 2>&1 & echo pid=$!; exit 0"))
    pids = pids_of(each.lines(1))
    assert each.end()[0] == 0
    assert gone(pids)


def test_what_a_worker_leaves_in_its_group_ends_with_the_job(job: type[Job]) -> None:
    each = job("-n", "2", *shell("sleep 1000 & echo pid=$!; exit 0"))
    pids = pids_of(each.lines(2))
    assert each.end()[0] == 0
    assert gone(pids)


def test_servers_go_with_the_workers_that_a_signal_ends() -> None:
    # The grace is for processes that do not end: here it is longer than the test may take.
    options = ("--servers", "1", "--grace", "600", "--")
    each = Job(*options, "sh", "-c", "echo pid=$$; exec sleep 1000")
    pids = pids_of(each.lines(1))
    each.process.send_signal(signal.SIGTERM)
    status, output = each.end()
    assert status == 128 + signal.SIGTERM, output
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_reach_every_worker(job: type[Job], number: signal.Signals) -> None:
    name = number.name[3:]
    script = f"trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    each = job("-n", "2", *shell(script))
    assert sorted(each.lines(2)) == ["[0] ready", "[1] ready"]
    each.process.send_signal(number)
    status, output = each.end()
    assert status == 128 + number
    for rank in (0, 1):
        assert f"[{rank}] caught {name}" in output
    assert f"passing SIG{name} on" in output


def test_workers_that_end_well_after_a_signal_make_a_success(job: type[Job]) -> None:
    each = job("-n", "2", *shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
    each.lines(2)
    each.process.terminate()
    assert each.end()[0] == 0


def test_ctrl_c_twice_kills(job: type[Job]) -> None:
    script = "trap 'echo caught' INT; trap '' TERM; echo pid=$$; while :; do sleep 0.05; done"
    each = job("-n", "2", "--grace", "1000", *shell(script))
    pids = pids_of(each.lines(2))
    each.process.send_signal(signal.SIGINT)
    lines = each.lines(3)  # the launcher's word and both workers'
    assert sum("caught" in line for line in lines) == 2
    each.process.send_signal(signal.SIGINT)
    status, output = each.end()
    assert status == 128 + signal.SIGINT
    assert "second signal" in output
    assert gone(pids)


def test_nohup_is_respected() -> None:
    done = subprocess.run(
        ["nohup", *HERRING, "run", "-n", "1", "--", "bash", "-c", "kill -HUP $PPID; sleep 0.2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Servers, here any command.


def run_with_servers(script: str, server: str, **options: object) -> tuple[int, str]:
    """Runs with `server` (shell) in place of `herring server`."""
    code = (
        "import sys; from herring.launch.hosts import lay_out\n"
        "from herring.launch.options import RunOptions\n"
        "from herring.launch.launcher import run\n"
        "sys.exit(run(RunOptions(['bash', '-c', sys.argv[1]], server_command=['bash', '-c',"
        f" sys.argv[2], 'server'], layout=lay_out((), 2, 2), **{options!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, script, server],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


def test_servers_get_the_rendezvous_and_no_rank(tmp_path: Path) -> None:
    # The workers end, and the servers with them, once both servers have spoken.
    status, output = run_with_servers(
        "echo servers=$HERRING_SERVERS at=$HERRING_RENDEZVOUS; "
        f"while [ $(ls {tmp_path} | wc -l) -lt 2 ]; do sleep 0.05; done",
        'echo "$@" host=$HERRING_HOST_ID rank=${HERRING_RANK-none} '
        "fd=${HERRING_RENDEZVOUS_FD-none} secret=${#HERRING_SECRET}; "
        f"touch {tmp_path}/$HERRING_HOST_ID; exec sleep 1000",
    )
    assert status == 0, output
    address = re.search(r"\[0\] servers=2 at=(\S+)", output).group(1)
    for index in (0, 1):
        assert re.search(
            rf"\[server {index}\] --rendezvous {address} host=\S+-server-{index} "
            "rank=none fd=none secret=64",
            output,
        ), output


def test_servers_end_once_all_workers_have() -> None:
    status, output = run_with_servers("exit 0", "exec sleep 1000")
    assert status == 0, output


def test_a_server_that_fails_ends_the_job() -> None:
    status, output = run_with_servers("exec sleep 1000", "exit 5")
    assert status == 5
    assert re.search(
        r"\[herring run\] error: server [01] \(process \d+\) exited with status 5", output
    )


def test_a_server_killed_by_a_signal_ends_the_job() -> None:
    status, output = run_with_servers("exec sleep 1000", "kill -KILL $$")
    assert status == 128 + signal.SIGKILL
    assert "was killed by SIGKILL (signal 9)" in output


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-n", "0", "--", "true"], 2, ["-n '0'", "1 to 1048576"]),
        (["-n", "99999", "--", "true"], 2, ["-n 99999", "1 to 1024"]),
        (["--servers", "1025", "--", "true"], 2, ["--servers 1025", "0 to 1024"]),
        (["-n", "two", "--", "true"], 2, ["'two'", "integer"]),
        (["-n", "2", "--nodes", "3", "--", "true"], 2, ["--nodes 3", "1 to 2"]),
        (["-n", "2", "--nodes", "0", "--", "true"], 2, ["--nodes 0"]),
        (["--servers", "-1", "--", "true"], 2, ["--servers '-1'", "0 to 65535"]),
        (["--timeout", "soon", "--", "true"], 2, ["'soon'", "seconds"]),
        (["--grace", "nan", "--", "true"], 2, ["'nan'", "seconds"]),
        (["-n", "2"], 2, ["no command", "--"]),
        (["-n", "2", "--"], 2, ["no command"]),
        (["--frob", "--", "true"], 2, ["--frob"]),
        (["--", "no-such-program-here"], 127, ["no-such-program-here", "no such program"]),
    ],
)
def test_bad_arguments(arguments: list[str], status: int, words: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert not done.stdout
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_without_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print(1)\n")
    done = run("--", str(path))
    assert done.returncode == 126
    assert f"python {path}" in done.stderr


def test_an_executable_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    done = run("-n", "2", "--", str(path))
    assert done.returncode == 126
    assert "cannot start rank 0" in done.stderr


def test_command_without_separator() -> None:
    assert run("-n", "1", "bash", "-c", "echo =$0", "-n").stdout == "[0] =-n\n"
