"""Elastic jobs: workers die and come, and no step is lost. Real jobs by `herring run`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import warm
from jobs import PREAMBLE, expect_success, program, run_job
from launched import HERRING, LEFT, no_ssh

pytestmark = pytest.mark.usefixtures("runtime_folder")


def elastic(folder: Path, layout: str, *arguments: object, **environment: str) -> str:
    words = [str(argument) for argument in arguments]
    script = program("elastic_steps", str(folder), *words)
    job = run_job(["--elastic", *layout.split()], script, **environment)
    return expect_success(job)


@pytest.mark.parametrize(
    ("layout", "events", "encryption"),
    [
        ("-n 3", ["1 5 before"], "off"),
        ("-n 3", ["0 5 between"], "off"),
        ("-n 3", ["2 5 after", "0 9 commit"], "off"),
        ("-n 4 --nodes 2", ["0 5 between", "3 5 before"], "off"),
        ("-n 4 --nodes 2 --servers 2", ["2 5 between", "0 20 before"], "off"),
        ("-n 4 --nodes 2 --servers 1", ["0 5 between"], "psk"),
    ],
    ids=["one", "the-first", "in-turn", "two-at-once", "with-servers", "encrypted"],
)
def test_no_step_is_lost_when_workers_die_and_come_back(
    tmp_path: Path, layout: str, events: list[str], encryption: str
) -> None:
    workers = int(layout.split()[1])
    output = elastic(tmp_path, layout, 30, workers, *events, HERRING_TLS=encryption)
    assert output.count(f"{workers} workers, sizes") == workers, output
    assert len(list(tmp_path.glob("event*"))) == len(events)
    assert output.count("starting another one in its place") == len(events), output
    # A worker that comes back at once may be there before the others have formed a generation.
    assert "generation 2, " in output


def begin(command: list[str]) -> subprocess.Popen[str]:
    """Starts `herring run`, and reads what it and the workers say."""
    return warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_workers_that_have_notice_leave_between_two_steps(tmp_path: Path) -> None:
    """Before the first commit, two at once with rank 0, and too late, at the last commit."""
    events = ["1 0 SIGTERM", "0 12 SIGTERM 3", "2 12 SIGTERM 3", "3 29 SIGTERM 1"]
    output = elastic(tmp_path, "-n 4 --notice SIGTERM", 30, 1, *events)
    assert output.count(LEFT) == 3 and output.count("is done:") == 1, output
    assert "sizes [1, 3, 4], worker 3, 30 attempts" in output  # no step was made again
    for text in ("warning", "error", "Error", "starting another"):
        assert text not in output, output


def test_all_workers_leave_and_each_generation_has_a_timeline(tmp_path: Path) -> None:
    """herring run passes the signal on, and says by its status that the training has not ended."""
    script = program("elastic_steps", str(tmp_path), "1000000", "1", "1 5 SIGUSR1")
    options = ["--elastic", "--notice", "USR1@60", "--timeline", str(tmp_path / "trace.json")]
    command = [*HERRING, "run", *options, "-n", "2", "--", sys.executable, *script]
    with begin(command) as job:
        assert job.stdout is not None
        while "generation 2, 1 workers" not in (line := job.stdout.readline()):
            assert line
        job.send_signal(signal.SIGUSR1)  # which the worker that is leaving may get, too
        assert LEFT in job.stdout.read()
        assert job.wait(600) == 75
    for name, ranks in (("trace.json", 2), ("trace.2.json", 1)):
        entries = json.loads((tmp_path / name).read_text())
        names = {str(entry["args"].get("name")) for entry in entries if entry["ph"] == "M"}
        assert sum(one.startswith("rank ") for one in names) == ranks, names


def test_the_end_of_the_whole_job_is_no_notice() -> None:
    script = """
import time
import herring.elastic

@herring.elastic.run
def train(state):
    print("begins", flush=True)
    herring.barrier()
    if herring.rank() == 0:
        time.sleep(1000)  # far from a commit
    herring.barrier()

train(herring.elastic.State())
"""
    options = ["--elastic", "--notice", "TERM@60", "--grace", "60", "-n", "2"]
    command = [*HERRING, "run", *options, "--", sys.executable, "-c", script]
    with begin(command) as job:
        assert job.stdout is not None
        for _ in range(2):
            assert "begins" in job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        assert job.wait(600) == 143
        assert LEFT not in job.stdout.read()


def test_a_child_of_a_dead_worker_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its copies of the worker's connections must not look like the worker."""
    try:
        output = elastic(tmp_path, "-n 2", 10, 2, "1 3 forked")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert output.count("2 workers, sizes") == 2, output


@pytest.mark.parametrize(
    ("number", "how"), [("SIGKILL", "was killed .*"), ("SIGSTOP", "is stopped")]
)
def test_a_dead_or_stopped_server_is_replaced(number: str, how: str) -> None:
    """Without failover, the loss of a server ends a generation as the loss of a worker does."""
    script = program("elastic_servers", number)
    job = run_job(["--elastic", "-n", "2", "--nodes", "2", "--servers", "2"], script)
    output = expect_success(job)
    assert output.count("is done with 2 servers") == 2, output
    assert re.search(rf"server \d \(process \d+\) {how}; starting another one", output), output


def test_fewer_workers_than_must_take_part_end_the_job(tmp_path: Path) -> None:
    options = ["--elastic", "-n", "3", "--min-workers", "2", "--restarts", "0", "--wait", "4"]
    script = program("elastic_steps", str(tmp_path), "10", "3", "0 3 before", "1 6 before")
    job = run_job(options, script)
    assert job.returncode == 1, job.stdout
    assert "only 1 worker is left, at least 2 (--min-workers) must take part" in job.stdout
    assert "PeerLostError: the elastic job ends: only 1 worker" in job.stdout
    assert job.stdout.count("is not started again") == 2, job.stdout


def test_a_job_begins_anew_only_so_often(tmp_path: Path) -> None:
    script = program("elastic_steps", str(tmp_path), "20", "1", "1 5 before")
    job = run_job(["--elastic", "-n", "2", "--reset-limit", "0"], script)
    assert job.returncode == 1, job.stdout
    text = "it has begun anew 0 times for other workers, and may not again (--reset-limit)"
    assert f"the elastic job ends: {text}" in job.stdout


def test_as_many_workers_are_started_as_there_are_slots_for(tmp_path: Path) -> None:
    script = program("elastic_steps", str(tmp_path), "3", "2")
    for most in "29":
        layout = ["-H", "localhost:2", "-np", "1", "--max-np", most]
        output = expect_success(run_job(["--elastic", *layout], script))
        assert output.count("2 workers, sizes [2]") == 2, output


def test_one_that_always_dies_is_given_up_and_the_others_end(tmp_path: Path) -> None:
    script = f"""
    import herring.elastic
    if os.environ["HERRING_RANK"] == "1":
        open(f"{tmp_path}/{{os.getpid()}}", "w").close()
        sys.exit("has a bug")
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while state.step < 30:
            time.sleep(0.02)
            deaths = np.array([float(len(os.listdir("{tmp_path}")))])
            state.step += herring.allreduce(deaths, op="min")[0] == 2
            state.commit()

    train(state)
    print("is done:", herring.size())
    """
    options = ["--elastic", "-n", "3", "--min-workers", "2", "--restarts", "1", "--wait", "5"]
    job = run_job(options, script)
    output = expect_success(job)
    assert output.count("is done: 2") == 2, output
    assert output.count("starting another one in its place") == 1, output
    assert "it died soon after its start 2 times (--restarts)" in output


def test_without_a_launcher_that_is_elastic_it_trains_as_always(tmp_path: Path) -> None:
    script = program("elastic_steps", str(tmp_path), "10", "2")
    output = expect_success(run_job(["-n", "2"], script))
    assert output.count("is done: generation 0, 2 workers") == 2, output
    script = program("elastic_steps", str(tmp_path), "10", "2", "1 3 before")
    job = run_job(["-n", "2", "--keep-going"], script)
    assert job.returncode == 137, job.stdout
    assert "PeerLostError" in job.stdout


def test_what_the_job_refuses() -> None:
    script = """
    import herring.elastic
    from herring.elastic import State
    raises(herring.ConfigurationError, "herring.elastic.run joins", herring.init)
    raises(herring.InvalidArgumentError, "'commit' cannot be", State, commit=1)
    raises(herring.InvalidArgumentError, "'_x' cannot be", State, _x=1)
    state = State(step=0)
    raises(AttributeError, "no value 'stop'", lambda: state.stop)
    raises(AttributeError, "name all values", setattr, state, "stop", 1)

    @herring.elastic.run
    def train(state):
        herring.init()  # harmless: the process is in the job already
        raise KeyError("of the program")

    raises(KeyError, "of the program", train, state)
    """
    expect_success(run_job(["--elastic", "-n", "1"], script))
    for options, text in (
        (["--min-workers", "2", "-n", "2"], "--min-workers is for elastic jobs"),
        (["--elastic", "--min-workers", "3", "-n", "2"], "an integer from 1 to 2"),
        (["--notice", "TERM", "-n", "2"], "--notice is for elastic jobs"),
        (["--elastic", "--notice", "KILL", "-n", "2"], "--notice KILL: allowed is one of SIGHUP, "),
    ):
        job = run_job(options, "")
        assert job.returncode == 2 and text in job.stdout
    job = run_job(["--elastic", "-n", "1"], "", HERRING_NOTICE="INT")
    assert job.returncode == 2 and "HERRING_NOTICE INT: allowed is one of" in job.stdout


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    script = program("elastic_steps", str(tmp_path), "1000000", "2")
    command = [*HERRING, "run", "--elastic", "-n", "2", "--", sys.executable, *script]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert "generation 1, 2 workers" in job.stdout.readline()
        job.send_signal(signal.SIGINT)
        job.stdout.read()
        assert job.wait(600) == 130


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of an elastic job on two hosts."""
    monkeypatch.setenv("HERRING_SSH", no_ssh(tmp_path))
    return ["--elastic", "-H", "localhost:1,far:1"]


def test_a_worker_on_another_host_is_started_again_there(far: list[str], tmp_path: Path) -> None:
    script = program("elastic_steps", str(tmp_path), "10", "2", "1 3 between")
    output = expect_success(run_job(far, script))
    assert re.search(r"rank 1 \(process \d+ on far\) was killed .*; starting another", output)
    assert len(re.findall(r"2 workers, sizes \[(1, )?2\]", output)) == 2, output


def test_the_loss_of_a_host_ends_no_elastic_job(far: list[str]) -> None:
    """The worker on the other host kills the launcher's connection to it."""
    script = """
    import herring.elastic
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while state.step < 10 or herring.size() == 2:
            herring.barrier()
            state.step += 1
            if state.step == 5 and os.environ["HERRING_RANK"] == "1":
                os.kill(os.getppid(), signal.SIGKILL)  # the agent, and its workers with it
                time.sleep(1000)
            state.commit()

    train(state)
    print("is done:", herring.size(), herring.elastic.generation())
    """
    output = expect_success(run_job(far, script))
    assert "is done: 1 2" in output
    assert "far is lost: " in output and "the job goes on without this host" in output


def test_a_host_that_is_lost_after_its_worker_gets_no_other_one(far: list[str]) -> None:
    """Its worker dies a second time, and is to be started again after a pause."""
    script = """
    import herring.elastic
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while herring.elastic.generation() < 4:
            herring.barrier()
            state.step += 1
            if state.step % 5 == 0 and os.environ["HERRING_RANK"] == "1":
                if herring.elastic.generation() > 1 and os.fork() == 0:
                    os.setsid()
                    time.sleep(0.1)
                    os.kill(agent, signal.SIGKILL)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
            state.commit()
        time.sleep(6)  # the restart that was due comes, and the connection ends

    agent = os.getppid()
    train(state)
    print("is done:", herring.size(), herring.elastic.generation())
    """
    # On a busy machine, the host might be lost only after the usual pause of half a second.
    code = """
from herring.command import cli
from herring.launch import restarts
restarts._FIRST_PAUSE = 4
raise SystemExit(cli.main())
"""
    words = ["run", *far, "--grace", "1", "--", sys.executable, "-c"]
    job = warm.run(
        [sys.executable, "-c", code, *words, PREAMBLE + textwrap.dedent(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    output = expect_success(job)
    assert "is done: 1 4" in output
    assert output.count("starting another one in its place") == 1, output
    assert "far is lost: " in output


@pytest.mark.parametrize("where", ["here", "far"])
def test_a_successor_that_cannot_be_started_counts_as_dead(
    where: str, far: list[str], tmp_path: Path
) -> None:
    worker = tmp_path / "worker"
    over = tmp_path / "over"
    waits = f"while ! [ -e {over} ]; do sleep 0.1; done; exit 0"
    worker.write_text(f"#!/bin/sh\n[ $HERRING_RANK = 0 ] && {{ {waits}; }}\nchmod -x $0\nexit 1\n")
    worker.chmod(0o755)
    options = far if where == "far" else ["--elastic", "-n", "2"]
    said = ""
    with begin([*HERRING, "run", *options, "--restarts", "2", "--", str(worker)]) as job:
        assert job.stdout is not None
        while said.count("could not be started") < 2 and (line := job.stdout.readline()):
            said += line
        over.touch()  # Rank 0 ends once both have failed.
        said += job.stdout.read()
        assert job.wait(600) == 0, said
    assert said.count("cannot start rank 1") == 2, said
    assert said.count("could not be started") == 2, said


def test_an_agent_lets_workers_leave_after_its_signal(far: list[str], tmp_path: Path) -> None:
    """Whoever ends a host tells all of its processes, and gives them time."""
    worker = tmp_path / "worker"
    worker.write_text(
        f"""#!/bin/bash
if [ $HERRING_RANK = 0 ]; then
  while ! [ -e {tmp_path}/leaves ]; do sleep 0.1; done
  exec sleep 2
fi
trap 'sleep 3; echo leaves; touch {tmp_path}/leaves; exit 75' TERM
kill -TERM $PPID
while true; do sleep 0.1; done
"""
    )
    worker.chmod(0o755)
    command = [*HERRING, "run", *far, "--notice", "TERM@20", "--", str(worker)]
    done = warm.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and "[1] leaves" in done.stdout, done.stdout + done.stderr
    assert LEFT in done.stderr, done.stderr


def test_copies_of_the_output_go_on_with_successors(tmp_path: Path) -> None:
    died = tmp_path / "died"
    shell = f"echo $HERRING_RANK; [ -e {died} ] && touch {died}2 && exit 0; "
    shell += f"while [ $HERRING_RANK = 0 ]; do [ -e {died}2 ] && exit 0; sleep 0.1; done; "
    options = ["--elastic", "-n", "2", "--output-filename", str(tmp_path / "copies")]
    done = warm.run(
        [*HERRING, "run", *options, "--", "sh", "-c", f"{shell} touch {died}; exit 1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copies" / "rank.1" / "stdout").read_text() == "1\n1\n"


def test_rank_0_reads_the_standard_input() -> None:
    command = [*HERRING, "run", "--elastic", "-n", "2", "--", "cat"]
    job = warm.run(command, input="hello", capture_output=True, text=True, timeout=600, check=False)
    assert job.stdout == "[0] hello\n", job.stderr


# Training of 20 steps; worker 1 does `event` once it has made 10.
ENDS = """
    import herring.elastic
    slot = int(os.environ["HERRING_RANK"])
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while state.step < 20:
            herring.barrier()
            if slot == 1 and state.step == 10:
                {event}
            state.step += 1
            state.commit()

"""


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_worker_that_fails_after_the_training_fails_the_job(seconds: int) -> None:
    script = (
        ENDS.format(event="pass")
        + f"""
    train(state)
    if slot == 0:
        sys.exit("cannot save the model")
    time.sleep({seconds})
    print("is done")
    """
    )
    job = run_job(["--elastic", "-n", "3"], script)
    assert job.returncode == 1 and job.stdout.count("is done") == 2, job.stdout
    assert "exited with status 1 after the training" in job.stdout
    assert "cannot save the model" in job.stdout and "starting another" not in job.stdout


def test_a_worker_that_stands_still_does_not_hold_up_the_end() -> None:
    script = (
        ENDS.format(event="os.kill(os.getpid(), signal.SIGSTOP)")
        + """
    train(state)
    print("is done:", herring.size())
    """
    )
    options = ["--elastic", "-n", "2", "--wait", "3"]
    job = run_job(options, script, HERRING_TIMEOUT="6")
    output = expect_success(job)
    assert "is done: 1" in output and "the training has ended without rank 1 (" in output, output


def test_a_program_may_catch_its_error_and_train_again() -> None:
    """Meanwhile the others go on, although its process has not ended."""
    script = """
    import herring.elastic
    from support import tell, told
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while herring.elastic.generation() < 3:
            if herring.elastic.generation() == 2:
                tell("the others go on")
            herring.barrier()
            if state.step == 10 and os.environ["HERRING_RANK"] == "1":
                raise ValueError("a bad sample")
            state.step += 1
            time.sleep(0.01)
            state.commit()

    try:
        train(state)
    except ValueError:
        told("the others go on")
        train(state)
    print("is done:", herring.size(), herring.elastic.generation())
    """
    output = expect_success(run_job(["--elastic", "-n", "3"], script))
    assert output.count("is done: 3 3") == 3 and "starting another" not in output, output


def test_newcomers_that_die_in_the_beginning_end_nobody_else() -> None:
    """Each of these generations fails before it has begun, and others begin in between."""
    script = """
    import herring.elastic
    slot = int(os.environ["HERRING_RANK"])

    class Fragile:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            if slot == 2 and herring.elastic.generation() > 1:
                os.kill(os.getpid(), signal.SIGKILL)

    state = herring.elastic.State(step=0, fragile=Fragile())
    state.on_generation(herring.barrier)

    @herring.elastic.run
    def train(state):
        while herring.elastic.generation() < 9:
            herring.barrier()
            state.step += 1
            if slot == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
            state.commit()

    train(state)
    print("is done:", state.step > 4)
    """
    options = ["--elastic", "-n", "3", "--min-workers", "2", "--restarts", "20"]
    output = expect_success(run_job(options, script))
    assert output.count("is done: True") == 2, output


def test_a_call_that_always_times_out_ends_the_job() -> None:
    """Each rank makes a call that no other one makes, and no generation comes to a commit."""
    script = """
    import herring.elastic
    state = herring.elastic.State(step=0)

    @herring.elastic.run
    def train(state):
        while state.step < 100:
            if state.step == 5:
                print("generation", herring.elastic.generation(), flush=True)
                herring.allreduce(np.ones(3), name=f"x of {herring.rank()}", timeout=0.5)
            state.step += 1
            state.commit()

    train(state)
    """
    job = run_job(["--elastic", "-n", "2", "--restarts", "0"], script)
    assert job.returncode not in (0, 124), job.stdout
    assert "TimeoutError" in job.stdout and "generation 4" not in job.stdout, job.stdout
