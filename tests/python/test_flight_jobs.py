"""Flight records of real jobs: what fails, where the file is, and what `herring flight` says."""

from __future__ import annotations

import os
import re
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from herring.flight.analysis import analyse
from herring.flight.findings import longest_wait
from herring.flight.record import Record, read
from herring.flight.report import as_text
from herring.flight.torch_format import convert
from jobs import LAYOUTS, expect_success, run_job
from launched import Job

# Prints the text of an error. All ranks stay until rank 0 has found the record that it names.
FAIL = """
from support import is_stopped, meet_outside, tell, tell_when_waiting, told, until

def failing(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except herring.HerringError as error:
        text = str(error)
    else:
        sys.exit("the call did not fail")
    place = text.rpartition("what all ranks did last is in ")[2]
    print(f"FAILED: {text}", flush=True)
    if herring.rank() == 0 and os.environ.get("RECORDS", "yes") == "yes":
        until(lambda: os.path.exists(place.partition(":")[2]))
    tell("recorded" if herring.rank() == 0 else "waits")
    stay()

def time_out(array, name, timeout):
    # Rank 0 calls last, and only it has a deadline, so no other rank that calls is missed.
    if rank == 0:
        told("waits")
    else:
        tell_when_waiting("waits")
        timeout = 600
    failing(herring.allreduce, array, name=name, timeout=timeout)

def stay():
    told("recorded")

herring.init()
rank = herring.rank()
"""


def flight_of(output: str) -> tuple[Record, str]:
    """Returns the record of a job, whose place each of its errors names, and the verdict."""
    told = r"what all ranks did last is in [^\s:]+:(\S+\.flight\.json)$"
    places = set(re.findall(told, output, re.MULTILINE))
    assert len(places) == 1, output
    file = Path(places.pop())
    record = read(file)
    return record, as_text(record, analyse(record)).splitlines()[0]


def failed(script: str, layout: str = "colocated-servers", **environment: str) -> str:
    with tempfile.TemporaryDirectory() as told:
        job = run_job(LAYOUTS[layout], FAIL + script, grace=600, FOLDER=told, **environment)
    assert "FAILED: " in job.stdout, job.stdout
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
    stay()
else:
    time_out(np.ones(4), "loss", 1)
""",
        layout,
    )
    record, verdict = flight_of(out)
    assert "loss" in record.why and re.search(r"rank 1\b.*never called allreduce 'loss'", verdict)
    assert stat.S_IMODE(the_file(folder).stat().st_mode) == 0o600
    assert set(record.ranks) == {0, 1, 2}
    assert f"'herring flight {the_file(folder)}' says who waited for whom" in out


def test_a_name_that_repeats_and_a_message(folder: Path) -> None:
    """The calls before that had the same name do not count, nor what only two ranks do."""
    out = failed(
        """
for step in range(60):
    if rank < 2:
        (herring.send if rank == 0 else herring.receive)(np.ones(4), 1 - rank)
    herring.allreduce(np.ones(4 + step), name="loss")
if rank == 1:
    stay()
else:
    time_out(np.ones(64), "loss", 1)
""",
    )
    record, verdict = flight_of(out)
    assert re.search(r"rank 1\b.*never called allreduce 'loss' \(call 61\), for which", verdict)
    analysis = analyse(record)
    assert analysis.last_common and analysis.last_common.title == "allreduce 'loss' (call 60)"
    # By clocks of processes, whose error is larger beside load, a message may be the latest.
    (late,) = (one for one in analysis.operations if one.title == "allreduce 'loss' (call 61)")
    assert longest_wait(record, late) > 0.9


def test_a_group_that_is_not_formed(folder: Path) -> None:
    """Nobody is missed who would not be in it."""
    out = failed(
        """
if rank == 0:
    failing(herring.new_group, [0, 1], name="tp", timeout=1)
else:
    stay()
""",
    )
    record, verdict = flight_of(out)
    assert re.search(r"^rank 1\b.* never called form_group 'tp' \(ranks 0-1\), for which", verdict)
    assert {one.ranks for one in record.missing} == {(1,)}


def test_a_call_of_a_group_that_times_out(folder: Path) -> None:
    out = failed(
        """
if rank != 2:
    # The group has just been made, so no report has told of it.
    pair = herring.new_group([0, 1], name="pair", timeout=600)
    if rank == 1:
        stay()
    else:
        failing(herring.allreduce, np.ones(4), name="loss", group=pair, timeout=0.2)
else:
    stay()
""",
    )
    record, verdict = flight_of(out)
    assert re.search(r"^rank 1\b.*never called allreduce 'loss'", verdict), verdict
    ((number, ranks),) = record.groups.items()
    assert number != 0 and ranks == (0, 1) and record.group_names == {number: "pair"}
    dumps = convert(record, analyse(record))
    groups = {rank: dump["pg_config"] for rank, dump in dumps.items()}
    pair = {"name": str(number), "desc": "pair", "ranks": "[0, 1]"}
    assert groups[0][str(number)] == groups[1][str(number)] == pair
    assert set(groups[2]) == {"0"}


def test_a_round_that_times_out(folder: Path) -> None:
    out = failed(
        """
from herring.planned import PlannedReduction
plan = PlannedReduction([(1000, "float32")] * 2, name="net")
for n in range(3):
    plan.begin()
    plan.ready(0)
    if rank == 1 and n == 2:
        stay()
        break
    plan.ready(1)
    plan.wait() if n < 2 else failing(plan.wait)
""",
        HERRING_TIMEOUT="10",
    )
    record, verdict = flight_of(out)
    assert "rank 1" in verdict and "'net' round 2" in verdict, verdict
    places = ("<string>", "support.py")  # where the program waits, in a call of its own
    assert not (stack := record.ranks[1].stack) or any(place in stack for place in places)


@pytest.mark.parametrize(("number", "said"), [("9", "lost"), ("19", "stopped")])
def test_a_rank_that_is_killed_or_stopped(number: str, said: str, folder: Path) -> None:
    out = failed(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends all when one is killed
pids = herring.allgather(np.array([os.getpid()]), name="first")
meet_outside(rank, range(3))
if rank == 1:
    os.kill(os.getpid(), int(os.environ["NUMBER"]))
time_out(np.ones(4), "second", 2.5)
if rank == 0:
    os.kill(int(pids[1]), signal.SIGKILL)
""",
        NUMBER=number,
    )
    record, verdict = flight_of(out)
    assert "rank 1" in verdict and said in verdict, verdict
    assert said in record.silent["rank", 1]
    assert set(record.ranks) == {0, 2}


MISMATCH = """

raises(herring.MismatchError, "'x'", herring.allreduce, np.ones(4 + rank), name="x")
herring.barrier()
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


def test_an_abort_leaves_no_record(folder: Path) -> None:
    job = run_job(
        LAYOUTS["colocated-servers"],
        FAIL
        + """
try:
    herring.barrier()
    if rank == 1:
        herring.abort("the loss is not a number")
    herring.barrier()
    herring.barrier()
except herring.HerringError as error:
    print("ABORTED", error, flush=True)
""",
    )
    assert "ABORTED" in job.stdout and "what all ranks did" not in job.stdout, job.stdout
    assert not list(folder.iterdir())


def test_a_record_that_is_asked_for(folder: Path) -> None:
    out = expect_success(
        run_job(
            LAYOUTS["colocated-servers"],
            """
herring.init()
herring.allreduce(np.ones(3), name="x")
place = herring.write_flight_record("a look")
assert bool(place) == (herring.rank() == 0)
from support import until
until(lambda: not place or os.path.exists(place))
herring.barrier()
""",
        )
    )
    record = read(the_file(folder))
    assert record.why == "a look" and set(record.ranks) == {0, 1, 2} and len(record.servers) == 3
    assert record.herring and not record.silent, out
    assert next(entry.collective for entry in record.ranks[1].entries) == "allreduce"


def test_a_record_is_not_lost_if_rank_0_ends_at_once(folder: Path) -> None:
    job = run_job(
        [*LAYOUTS["colocated-servers"], "--keep-going"],
        """
from pathlib import Path
from support import until
herring.init()
folder = Path(os.environ["HERRING_FLIGHT_FOLDER"])
if herring.rank() == 1:
    until(lambda: list(folder.glob("*.json")))
    os._exit(0)
herring.allreduce(np.ones(4), name="loss", timeout=0.5 if herring.rank() == 0 else 600)
""",
    )
    assert job.returncode == 1
    record = read(the_file(folder))
    assert {0, 2} <= set(record.ranks), job.stdout


@pytest.mark.parametrize("value", ["off", "/proc/nowhere", "missing/below"])
def test_folders(value: str, tmp_path: Path) -> None:
    folder = str(tmp_path / value) if value == "missing/below" else value
    records = "yes" if value == "missing/below" else "no"
    output = failed(
        """
if rank == 1:
    stay()
else:
    time_out(np.ones(4), "loss", 0.5)
""",
        "one-node",
        HERRING_FLIGHT_FOLDER=folder,
        RECORDS=records,
    )
    assert ("what all ranks did last" in output) == (value == "missing/below"), output
    warned = "there will be no flight record, and the job goes on: HERRING_FLIGHT_FOLDER=/proc"
    assert (warned in output) == (value == "/proc/nowhere"), output
    if value == "missing/below":
        assert len(list((tmp_path / value).iterdir())) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    # Every file in this folder is /dev/full.
    script = """
from support import until
herring.init()
name = f"{os.environ['HERRING_JOB']}-{os.getpid()}.flight.json"
part = os.path.join(os.environ["HERRING_FLIGHT_FOLDER"], name + ".part")
if herring.rank() == 0:
    os.symlink("/dev/full", part)
place = herring.write_flight_record()
if place:
    assert os.path.basename(place) == name, place
    until(lambda: not os.path.lexists(part))
    assert not os.path.exists(place)
herring.barrier()
"""
    job = run_job(LAYOUTS["one-node"], script, HERRING_FLIGHT_FOLDER=str(tmp_path))
    said = expect_success(job)
    assert "there is no flight record: cannot write" in said and "No space left" in said, said


def test_the_default_folder_keeps_twenty_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"herring-{os.getuid()}"
    folder.mkdir(mode=0o700)
    for number in range(30):
        (folder / f"old-{number}.flight.json").touch()
        os.utime(folder / f"old-{number}.flight.json", (1e9 + number, 1e9 + number))
    script = """
from support import until
herring.init()
place = herring.write_flight_record()
until(lambda: os.path.exists(place))
"""
    expect_success(run_job(LAYOUTS["alone"], script))
    kept = [path.name for path in folder.iterdir()]
    assert len(kept) == 20 and "old-29.flight.json" in kept and "old-10.flight.json" not in kept
