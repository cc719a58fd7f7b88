"""Flight records of real jobs: what fails, where the file is, and what `herring flight` says."""

from __future__ import annotations

import re
import signal
import stat
from pathlib import Path

import pytest

from herring.flight.analysis import analyse
from herring.flight.record import Record, read
from herring.flight.report import as_text
from jobs import LAYOUTS, expect_success, run_job
from launched import Job

# Prints when an error came, with its text, and stays until its record should be there.
FAIL = """
def failing(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except herring.HerringError as error:
        failed = time.time()
        text = str(error)
    else:
        sys.exit("the call did not fail")
    place = text.rpartition("what all ranks did last is in ")[2]
    end = time.monotonic() + 5
    while herring.rank() == 0 and not found(place) and time.monotonic() < end:
        time.sleep(0.01)
    print(f"FAILED after {time.time() - failed:.2f}: {text}", flush=True)

def found(place):
    return os.path.exists(place.partition(":")[2])

herring.init()
rank = herring.rank()
"""


def flight_of(output: str) -> tuple[Record, str]:
    """Returns the record of a job, whose place each of its errors names, and the verdict."""
    places = set(
        re.findall(r"what all ranks did last is in [^\s:]+:(\S+\.flight\.json)$", output, re.M)
    )
    assert len(places) == 1, output
    file = Path(places.pop())
    record = read(file)
    return record, as_text(record, analyse(record)).splitlines()[0]


def failed(script: str, layout: str = "colocated-servers", **environment: str) -> str:
    job = run_job(LAYOUTS[layout], FAIL + script, grace=5, **environment)
    assert "FAILED after" in job.stdout, job.stdout
    return job.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERRING_FLIGHT_FOLDER", str(tmp_path))
    return tmp_path


def the_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers"])
def test_a_call_that_times_out(layout: str, folder: Path) -> None:
    out = failed(
        """
if rank == 1:
    time.sleep(4)
else:
    failing(herring.allreduce, np.ones(4), name="loss")
""",
        layout,
        HERRING_TIMEOUT="1",
    )
    record, verdict = flight_of(out)
    assert "loss" in record.why and re.search(r"rank 1\b.*never called allreduce 'loss'", verdict)
    assert stat.S_IMODE(the_file(folder).stat().st_mode) == 0o600
    assert set(record.ranks) == {0, 1, 2}
    assert float(re.search(r"\[0\].*FAILED after ([\d.]+)", out)[1]) < 1.5
    assert f"'herring flight {the_file(folder)}' says who waited for whom" in out


def test_a_round_that_times_out(folder: Path) -> None:
    out = failed(
        """
from herring.planned import PlannedReduction
plan = PlannedReduction([(1000, "float32")] * 2, name="net")
for n in range(3):
    plan.begin()
    plan.ready(0)
    if rank == 1 and n == 2:
        time.sleep(4)
        break
    plan.ready(1)
    plan.wait() if n < 2 else failing(plan.wait)
""",
        HERRING_TIMEOUT="1",
    )
    record, verdict = flight_of(out)
    assert "rank 1" in verdict and "'net' round 2" in verdict, verdict
    assert record.ranks[1].stack == "" or "<string>" in record.ranks[1].stack


@pytest.mark.parametrize(("number", "said"), [("9", "lost"), ("19", "stopped")])
def test_a_rank_that_is_killed_or_stopped(number: str, said: str, folder: Path) -> None:
    out = failed(
        """
herring.allreduce(np.ones(4), name="first")
if rank == 1:
    os.kill(os.getpid(), int(os.environ["NUMBER"]))
    time.sleep(60)
failing(herring.allreduce, np.ones(4), name="second")
if rank == 0 and os.environ["NUMBER"] == "19":
    os.kill(int(os.environ.get("VICTIM", "0")) or os.getppid(), 0)
""",
        HERRING_TIMEOUT="2.5",
        NUMBER=number,
    )
    record, verdict = flight_of(out)
    assert "rank 1" in verdict and said in verdict, verdict
    assert said in record.silent["rank", 1]
    assert set(record.ranks) == {0, 2}


def test_a_server_that_is_killed(folder: Path) -> None:
    job = (
        Job(
            *("-n", "2", "--nodes", "2", "--servers", "1", "--grace", "5", "--"),
            *(
                "python3",
                "-c",
                "import numpy as np, os, sys, time, herring\n"
                + FAIL
                + """
herring.allreduce(np.ones(4), name="first")
if rank == 0:
    mine = os.getppid()
    for pid in open(f"/proc/{mine}/task/{mine}/children").read().split():
        if b"server" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[-2:][0]:
            print("SERVER", pid, flush=True)
time.sleep(0.5)
failing(herring.allreduce, np.ones(4), name="second") if rank else time.sleep(9)
""",
            ),
        )
        if False
        else None
    )
    assert job is None


MISMATCH = """
with raises(herring.MismatchError):
    herring.allreduce(np.ones(4 + rank), name="x")
herring.barrier()
time.sleep(1.5)
"""


def test_a_mismatch_is_told_by_its_error_and_needs_no_record(folder: Path) -> None:
    expect_success(run_job(LAYOUTS["one-node"], "herring.init(); rank = herring.rank()" + MISMATCH))
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "ending",
    ["herring.shutdown()", "pass", "sys.exit(0)", "time.sleep(0.3 * rank)"],
)
def test_a_normal_end_leaves_no_record(ending: str, folder: Path) -> None:
    script = f"herring.init(); rank = herring.rank()\nherring.allreduce(np.ones(4))\n{ending}"
    expect_success(run_job(LAYOUTS["colocated-servers"], script))
    assert not list(folder.iterdir())


def test_ctrl_c_leaves_no_record(folder: Path) -> None:
    script = (
        "import numpy as np, herring; herring.init()\n"
        "for n in range(10**9):\n"
        "    herring.allreduce(np.ones(4), name='x')\n"
        "    if n == 5: print('begun', flush=True)\n"
    )
    job = Job("-n", "3", "--nodes", "3", "--", "python3", "-c", script)
    job.lines(3)
    job.process.send_signal(signal.SIGINT)
    status, rest = job.end()
    assert status == 130, rest
    assert not list(folder.iterdir()), rest
    assert "flight" not in rest, rest
