"""Dedicated servers whose host is about to be taken away. Real jobs by `herring run`."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from jobs import PREAMBLE, run_job
from launched import LEFT, Job, no_ssh

pytestmark = pytest.mark.usefixtures("runtime_folder")


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program stands for ssh."""
    monkeypatch.setenv("HERRING_SSH", no_ssh(tmp_path))


# Training in which worker 1 tells a process once that its host will be taken away. It goes on until
# the launcher has said that a server has left.
NOTICE = """
    import herring.elastic
    from support import server_process

    slot = int(os.environ["HERRING_RANK"])
    state = herring.elastic.State(step=0)
    attempts = 0

    @herring.elastic.run
    def train(state):
        global attempts
        left = False
        while not left:
            attempts += 1
            if slot == 1 and attempts == 10:  # all processes of the job run by now
                server = server_process()
                stat = open(f"/proc/{{server}}/stat").read()
                parent = int(stat.rpartition(")")[2].split()[1])
                os.kill({process}, signal.SIGTERM)
            time.sleep(0.01)
            left = herring.allreduce(np.array([float(os.path.exists(sys.argv[1]))]), op="max")[0]
            state.step += 1
            state.commit()

    train(state)
    print("is done:", herring.size(), herring.elastic.generation(), attempts - state.step)
"""


def until_it_has_left(options: list[str], process: str, folder: Path, **environment: str) -> str:
    """Trains until the launcher says that a server has left, and returns what the job prints."""
    stop = folder / "stop"
    script = PREAMBLE + textwrap.dedent(NOTICE.format(process=process))
    limits = ["--timeout", "60", "--grace", "1", "--"]
    words = [*options, *limits, sys.executable, "-c", script, str(stop)]
    job = Job(*words, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    said = job.lines(1)
    while said[-1] and not re.search(rf"server \d .*{LEFT}", said[-1]):
        said += job.lines(1)
    stop.touch()
    status, rest = job.end()
    output = "\n".join([*said, rest])
    assert status == 0, output
    return output


@pytest.mark.parametrize("failover", ["false", "true"])
def test_a_server_that_has_notice_leaves_between_two_steps(failover: str, tmp_path: Path) -> None:
    """It serves the step to its end, and the others go on without it."""
    options = "--elastic -n 2 --nodes 2 --servers 2 --notice SIGTERM"
    output = until_it_has_left(options.split(), "server", tmp_path, HERRING_FAILOVER=failover)
    assert output.count("is done: 2 2 0") == 2, output
    assert re.search(rf"server \d \(process \d+\) {LEFT}", output), output
    for text in ("warning", "error", "Error", "starting another"):
        assert text not in output, output


@pytest.mark.parametrize(
    ("hosts", "process", "left"),
    [
        (["-H", "localhost:1,far:1", "--servers", "2"], "os.getppid()", 1),
        (["-H", "localhost:2,far:1", "-n", "2", "--servers", "1"], "parent", 2),
    ],
    ids=["beside-a-worker", "alone"],
)
def test_servers_of_a_host_with_notice_serve_until_its_workers_leave(
    hosts: list[str], process: str, left: int, tmp_path: Path
) -> None:
    """The signal comes to the agent of herring run. No step is made again."""
    options = ["--elastic", "--notice", "TERM@20", *hosts]
    output = until_it_has_left(options, process, tmp_path)
    # Steps are so short here that the server may leave after the worker, in a generation later.
    assert len(re.findall(rf"is done: {left} [23] 0", output)) == left, output
    assert re.search(rf"server \d \(process \d+ on far\) {LEFT}", output), output
    assert "starting another" not in output and "Error" not in output, output


@pytest.mark.parametrize("notice", ["", "TERM@60"])
def test_an_agent_ends_servers_after_the_workers_that_finish_a_step(notice: str) -> None:
    """In a job that is not elastic, too, with and without a notice."""
    script = """
    told = False

    def note(*_):
        global told
        told = True

    signal.signal(signal.SIGTERM, note)
    herring.init()
    while not herring.allreduce(np.array([float(told)]), op="max")[0]:
        if herring.rank() == 1 and not told:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(0.1)
    for _ in range(50):
        herring.allreduce(np.ones(100))
        time.sleep(0.01)
    print("has finished the step", flush=True)
    """
    options = ["-H", "localhost:1,far:1", "--servers", "2"]
    output = run_job(options, script, grace=60, HERRING_NOTICE=notice).stdout
    assert output.count("has finished the step") == 2, output
    assert "PeerLostError" not in output, output
