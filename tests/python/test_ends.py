"""Ctrl-C and SIGTERM end a whole training job soon, in order, and leave nothing behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import program
from launched import HERRING, gone, no_ssh, pids_of

pytestmark = pytest.mark.usefixtures("runtime_folder")

# A process that does not heed the signal would take as long as the grace.
GRACE = 60
FAILOVER = {"HERRING_FAILOVER": "true"}
JOBS: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("-n 3 --nodes 2", {}),
    "torch": ("-n 2 --nodes 2", {}),
    "failover": ("-n 3 --nodes 2 --servers 2", FAILOVER),
    "elastic": ("--elastic -n 3 --servers 1", {}),
    "hosts": ("-H localhost:2,far:1 --servers 2", FAILOVER),
}


def processes_with(variable: str) -> set[int]:
    """Returns the processes that have a variable in their environment."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if variable.encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                found.add(int(process))
    return found - {os.getpid()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("kind", JOBS)
def test_the_whole_job_ends_within_five_seconds(
    kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    """All processes heed the signal: none is killed after the grace, which is far longer."""
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    options, variables = JOBS[kind]
    words = [*HERRING, "run", *options.split(), "--grace", str(GRACE)]
    with subprocess.Popen(
        [*words, "--", sys.executable, *program("trains_on", kind)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HERRING_SSH": no_ssh(tmp_path), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        said = []
        while len(pids := pids_of(said)) < 2 + (options != JOBS["torch"][0]):
            said.append(job.stdout.readline())
            assert said[-1], "".join(said)
        processes = processes_with(f"XDG_RUNTIME_DIR={os.environ['XDG_RUNTIME_DIR']}")
        assert {job.pid, *pids} < processes
        if number == signal.SIGINT:  # to all that have not left the group, as a terminal does
            os.killpg(job.pid, number)
        else:
            job.send_signal(number)
        output = job.stdout.read()
        status = job.wait(600)
        assert gone(processes)
    assert status == 128 + number, output
    assert f"passing {number.name} on" in output, output
    assert "killing" not in output and "starting another" not in output, output
