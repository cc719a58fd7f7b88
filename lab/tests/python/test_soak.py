"""`herring soak`: jobs whose servers die, and what it concludes from jobs that are made up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from herring.base import proc
from herring.command.cli import main
from herring_lab.soak.advance import Advance
from herring_lab.soak.elastic_training import total_of
from herring_lab.soak.faults import Fault, Faults
from herring_lab.soak.job import Layout, Sample
from herring_lab.soak.judge import Outcome, percentile
from herring_lab.soak.records import Steps, difference, read, steps_file, worker_file
from herring_lab.soak.report import lines
from herring_lab.soak.workers import ElasticJob, Step, WorkersOutcome, read_workers
from launched import HERRING

MEMORY = 1_000_000


@pytest.mark.measures
def test_a_job_survives_faults_with_the_same_bits() -> None:
    """Nodes have different numbers of workers, and workers two connections to each server."""
    words = ["--minutes", "0.1", "--kill-every", "0.6", "-n", "3", "--nodes", "2"]
    words += ["--model", "500K", "--seed", "5", "--json"]
    job = subprocess.run(
        [*HERRING, "soak", *words],
        env={**os.environ, "HERRING_FLOWS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    found = json.loads(job.stdout)
    assert "herring soak: 100 %, " in job.stderr, job.stderr
    assert "herring soak, the twin: " in job.stderr, job.stderr
    assert found["seed"] == 5
    assert found["problems"] == []
    assert found["survived"] == found["faults"] >= 1
    assert found["steps"] > 10
    assert 0 < found["recovery_seconds"]["p50"] <= found["recovery_seconds"]["max"]


@pytest.mark.measures
def test_no_step_is_lost_when_workers_die() -> None:
    words = ["--workers", "--minutes", "0.12", "--kill-every", "1", "-n", "3", "--nodes", "1"]
    words += ["--servers", "0", "--model", "50K", "--seed", "5", "--json"]
    job = subprocess.run(
        [*HERRING, "soak", *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert job.returncode == 0, job.stdout + job.stderr
    found = json.loads(job.stdout)
    assert found["problems"] == []
    assert found["faults"] >= 2
    assert found["generations"] > found["faults"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_remains_of_a_soak_that_is_interrupted(number: int) -> None:
    job = subprocess.Popen(
        [*HERRING, "soak", "--minutes", "9", "--seed", "5", "-n", "2", "--model", "50K"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = None
    deadline = time.monotonic() + 60
    while folder is None and time.monotonic() < deadline:
        words = []
        with contextlib.suppress(psutil.Error):
            words = [word for one in psutil.Process(job.pid).children() for word in one.cmdline()]
        folder = next((Path(each).parent for each in words if each.startswith("/tmp/hsoak-")), None)
    job.send_signal(number)
    _, said = job.communicate(timeout=60)
    assert job.returncode in (128 + signal.SIGINT, -signal.SIGINT), said
    assert folder is not None
    assert not folder.exists()
    assert "are in /tmp" not in said


TOTALS = [0]
for _step in range(6):
    TOTALS.append(TOTALS[-1] + total_of(_step, [0, 1] if _step < 3 else [1], 10))


def made(
    number: int,
    generation: int,
    slots: tuple[int, ...],
    pid: int,
    more: int = 0,
    start: int = 1,
) -> Step:
    total = TOTALS[number + 1] + more
    return Step(number, 1.0 + number, generation, slots, total, f"{pid}-{start}")


def elastic(*steps: Step, **changes: object) -> WorkersOutcome:
    fault = Fault(3.5, "kill", 0, 10, None, 3.9)
    values = {"faults": [fault], "ranks": 2, "elements": 10, "ended": 2, "steps": list(steps)}
    values = {"seed": 1, "memory": MEMORY, **values, **changes}
    return WorkersOutcome(**values)  # type: ignore[arg-type]


BOTH = [made(number, 1, (0, 1), pid) for number in range(3) for pid in (10, 11)]
ALONE = [made(number, 2, (1,), 11) for number in range(3, 6)]


def test_totals_are_those_of_the_workers_that_took_part() -> None:
    good = elastic(*BOTH, *ALONE)
    assert good.problems() == []
    assert good.recoveries() == [0.5]
    # The victim had ended a step whose result nobody else had.
    assert elastic(*BOTH, made(3, 1, (0, 1), 10, 7), *ALONE).problems() == []


def test_process_ids_of_workers_come_again() -> None:
    # A later worker has the ID of the victim, which had been that of another one before.
    other = made(2, 1, (0, 1), 10, start=2)
    later = [made(number, 3, (1,), 10, start=3) for number in range(4, 6)]
    again = elastic(*BOTH[:4], other, BOTH[5], *ALONE[:1], *later)
    assert again.problems() == []
    assert again.recoveries() == [0.5]
    # It is not the one that was killed, and had the step.
    assert "step 4 was made twice" in elastic(*BOTH, *ALONE, *later, made(4, 4, (1,), 11)).wrong()


def test_who_has_a_process_id_again_is_no_worker(tmp_path: Path) -> None:
    line = "3 1.5 2 0,1 17\n"
    for slot, process in ((0, proc.identity(os.getpid())), (1, f"{os.getpid()}-1")):
        worker_file(tmp_path, slot, process).write_text(line)

    class Made(ElasticJob):
        def __init__(self) -> None:
            self._folder, self._ended = tmp_path, set()
            self._layout = Layout(2, 1, 0, 8, 1.0)

    job = Made()
    assert job.processes() == {os.getpid(): "worker 0 as rank 0 of 2"}
    assert [(one["server"], one["state"]) for one in job.ask()] == [(0, "serving"), (1, "gone")]
    steps, _ = read_workers(tmp_path)
    assert len({step.process for step in steps}) == 2
    job._seen = {proc.identity(os.getpid()): "server 0", f"{os.getpid()}-1": "server 1"}
    assert job.left() == [f"server 0 (process {os.getpid()})"]


def test_how_far_a_soak_is(capsys: pytest.CaptureFixture[str]) -> None:
    advance = Advance("herring soak")
    for share in (0, 0.05, 0.101, 0.102, 0.25, 0.29, 1):
        advance.show(share, "7 faults, 6 over")
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == [
        "herring soak: 10 %",
        "herring soak: 25 %",
        "herring soak: 100 %",
    ]
    assert said[0].endswith("7 faults, 6 over, about 0 s left")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (elastic(*BOTH, *ALONE[1:]), "step 3 was lost"),
        (elastic(*BOTH, made(3, 2, (1,), 11, 1), *ALONE[1:]), "the total after step 3 is"),
        (elastic(*BOTH, made(2, 2, (1,), 11), *ALONE), "step 2 was made twice"),
        (elastic(*BOTH, *ALONE, ended=1), "1 of 2 workers came to the end"),
        (elastic(*BOTH, *ALONE, faults=[]), "there was no fault"),
        (elastic(*BOTH, *ALONE, faults=[Fault(1.5, "kill", 0, 10)]), "1 worker did not come back"),
        (elastic(*BOTH, *ALONE, left=["x"]), "left behind: x"),
    ],
)
def test_what_is_wrong_with_workers_is_said(outcome: WorkersOutcome, said: str) -> None:
    assert said in "\n".join(outcome.problems())


def steps(*bits: str, begin: float = 1.0) -> Steps:
    return Steps([begin + index for index in range(len(bits))], [(b,) for b in bits], True)


def outcome(**changes: object) -> Outcome:
    fault = Fault(1.5, "kill", 0, 10, None, 1.9)
    ranks = [steps("a", "b", "c") for _ in range(2)]
    values = {"faults": [fault], "steps": ranks, "twin": list(ranks), "samples": []}
    return Outcome(**{"seed": 1, "memory": MEMORY, **values, **changes})  # type: ignore[arg-type]


def test_a_good_outcome_has_no_problem() -> None:
    good = outcome()
    assert good.problems() == []
    assert good.recoveries() == [0.5]
    assert good.figures()["throughput_kept"] == 1.0
    assert "throughput  100.0 % kept: 1.0 of 1.0 steps/s" in lines(good)
    alone = lines(outcome(twin=[]))
    assert not any(line.startswith("throughput") for line in alone), "there is nothing to compare"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"twin": [steps("a", "x", "c")] * 2}, "bits differ from step 1 on: b, b, x, x"),
        ({"twin": [steps("a", "b")] * 2}, "steps were lost: ranks have 3, 3, 2, 2 steps"),
        ({"steps": [steps("a", "b", "c"), steps("a", "b", "y")]}, "between ranks of the job"),
        ({"faults": []}, "there was no fault"),
        ({"faults": [Fault(1.5, "kill", 0, 10)]}, "1 fault not survived"),
        ({"left": ["/dev/shm/herring-1"]}, "left behind: /dev/shm/herring-1"),
        ({"failure": "it crashed"}, "it crashed"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], said: str) -> None:
    assert said in "\n".join(outcome(**changes).problems())


@pytest.mark.parametrize(
    ("what", "leak", "grows"),
    [
        ("memory", 1000, False),
        ("memory", 50_000, True),
        ("descriptors", 1, True),
        ("threads", 1, True),
    ],
)
def test_a_leak_at_each_fault_is_found(what: str, leak: int, grows: bool) -> None:
    used = {"memory": 10**8, "descriptors": 40, "threads": 7}
    samples = [
        Sample(
            float(at), "rank 1", 5, **{**used, what: used[what] + leak * at}, faults=at, calm=True
        )
        for at in range(60)
    ]
    found = outcome(samples=samples).problems()
    assert [f"grew: rank 1: {what}" in one for one in found] == [True] * grows, found


def test_a_step_that_is_missing_in_between_is_an_error(tmp_path: Path) -> None:
    steps_file(tmp_path, 0).write_text("123\n0 1.5 aa\n1 1.75 bb cc\n2 1.8")
    found = read(tmp_path, 0)
    assert (found.ends, found.bits, found.done) == ([1.5, 1.75], [("aa",), ("bb", "cc")], False)
    assert difference([found, found]) == ""
    steps_file(tmp_path, 0).write_text("123\n0 1.5 aa\n2 1.75 bb\n")
    with pytest.raises(ValueError, match="step 2 came after 1 steps"):
        read(tmp_path, 0)


def server(number: int, pid: int, state: str = "serving") -> dict[str, object]:
    return {"server": number, "pid": pid, "state": state, "kind": "dedicated"}


@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_fault_waits_unless_told_not_to(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr("herring_lab.soak.faults.os.kill", lambda pid, number: sent.append(pid))
    faults = Faults(1, 1.0, 0.0, overlap)
    servers = [server(0, 10), server(1, 11), server(2, 12)]

    def pass_time(begin: float) -> None:
        for tick in range(40):
            faults.look(begin + tick / 10, servers)
            faults.act(begin + tick / 10, servers)

    pass_time(0)
    assert len(sent) == (2 if overlap else 1), "one server must stay"
    assert len(set(sent)) == len(sent)
    servers = [server(number, 20 + number) for number in range(3)]
    pass_time(100)
    assert all(fault.replaced == 100 for fault in faults.done[: 2 if overlap else 1])
    assert sent[-1] >= 20


def test_process_ids_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herring_lab.soak.faults.os.kill", lambda pid, number: None)
    faults = Faults(1, 1.0, 0.0, False)
    for begin in range(0, 1000, 10):
        # Two IDs for the processes of each server, in turn: those of servers that were killed.
        servers = [server(number, 10 * number + begin // 10 % 2) for number in range(3)]
        for tick in range(50):
            now = begin + tick / 10
            faults.look(now, servers)
            if faults.calm or not faults.done:
                faults.act(now, servers)
            elif faults.done[-1].pid == servers[faults.done[-1].server]["pid"]:
                servers[faults.done[-1].server]["pid"] = faults.done[-1].pid ^ 1
    assert len(faults.done) > 200
    assert all(fault.replaced is not None for fault in faults.done[:-1])


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--servers", "0"], "leaves nobody to kill"),
        (["--servers", "1", "--nodes", "1"], "leaves nobody to stand in"),
        (["--stop-share", "2"], "is not a share from 0 to 1"),
        (["--minutes", "0"], "is not a number of minutes above 0"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["soak", *words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err
