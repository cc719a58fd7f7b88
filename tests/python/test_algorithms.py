"""All-reduce by messages between workers: every algorithm against NumPy, and what goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from herring import models
from jobs import LAYOUTS, REDUCTIONS, expect_success, run_job, seconds_until_known

pytestmark = pytest.mark.timeout(120)

ALGORITHMS = """
herring.init()
rank = herring.rank()
for algorithm in ("server", "tree", "ring", "butterfly"):
    # Fewer elements than ranks, odd tails, and blocks of several frames.
    check_reductions((0, 1, 3, 1009, 300_007), algorithm=algorithm)
    # The same bits on every rank, and again.
    digests = []
    for attempt in range(2):
        array = np.random.default_rng(rank).standard_normal(200_003).astype(np.float32)
        array *= 10.0 ** np.random.default_rng(rank + 50).integers(-6, 6, len(array))
        herring.allreduce(array, algorithm=algorithm)
        digests += herring.allgather_object(hashlib.sha256(array.tobytes()).hexdigest())
    assert len(set(digests)) == 1, (algorithm, digests)
"""


@pytest.mark.parametrize("layout", [*LAYOUTS, "two"])
def test_every_algorithm(layout: str) -> None:
    options = {**LAYOUTS, "two": ["-n", "2", "--nodes", "2", "--servers", "1"]}[layout]
    expect_success(run_job(options, REDUCTIONS + ALGORITHMS, timeout=100))


BESIDE = """
# Many at a time, of every algorithm, in another order on each rank; beside operations of servers.
import random
herring.init()
rank, size = herring.rank(), herring.size()
algorithms = ("herring", "server", "tree", "ring", "butterfly")
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(30)]
    random.Random(rank + 100 * attempt).shuffle(names)
    handles = []
    for name in names:
        number = int(name.split(".")[1])
        array = np.full((5, 3_000, 400_000)[number % 3], rank, np.int64)
        handles.append(herring.allreduce_async(
            array, "sum", name=name, algorithm=algorithms[number % 5]))
    random.Random(rank + 7).shuffle(handles)
    for handle in handles:
        assert (handle.wait(60) == size * (size - 1) // 2).all()
counters = herring.stats()["workers"]
assert counters["bytes_sent"] > 0 and counters["bytes_received"] > 0
"""


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "uneven-nodes"])
def test_many_at_a_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], BESIDE, timeout=100))


MISTAKES = """
herring.init()
rank, size = herring.rank(), herring.size()
ones = np.ones(1000, np.float32)
raises(herring.InvalidArgumentError, "'herring', 'server', 'tree', 'ring', 'butterfly'",
       herring.allreduce, ones, algorithm="rings")
raises(herring.InvalidArgumentError, "'average' of dtype int32",
       herring.allreduce, np.zeros(3, np.int32), algorithm="ring")
raises(herring.MismatchError, "rank 1: allreduce of float32 [1000], op sum, algorithm ring",
       herring.allreduce, ones, "sum", name="a", algorithm="ring" if rank == 1 else "tree")
raises(herring.MismatchError, "rank 2: allreduce of float32 [1000], op sum, algorithm ring",
       herring.allreduce, ones, "sum", name="b", algorithm="ring" if rank == 2 else "herring")
raises(herring.MismatchError, "rank 0: allreduce of float64", herring.allreduce,
       ones.astype(np.float64) if rank == 0 else ones, name="c", algorithm="ring")
raises(herring.MismatchError, "rank 0: allreduce of float32 [1001]", herring.allreduce,
       np.ones(1001 if rank == 0 else 1000, np.float32), name="d", algorithm="butterfly")
raises(herring.MismatchError, "op max", herring.allreduce, ones, "max" if rank else "sum",
       name="e", algorithm="server")
# One rank never calls: the others are told who, and go on.
if rank != 2:
    raises(herring.TimeoutError, "rank 2 (", herring.allreduce, ones, name="lonely", timeout=0.3,
           algorithm="ring")
herring.barrier()
herring.allreduce(ones, "sum", algorithm="ring")
assert (ones == size).all()
"""


def test_mistakes_name_what_is_wrong_and_the_job_goes_on() -> None:
    expect_success(run_job(["-n", "3", "--nodes", "3", "--servers", "1"], MISTAKES))


# The victim kills itself in the middle of traffic; everybody else must learn within 2 s.
VICTIM = """
herring.init()
rank, victim = herring.rank(), int(os.environ["VICTIM"])
algorithm = os.environ["ALGORITHM"]
large = np.zeros(5_000_000, np.float32)
herring.allreduce(large, name="warm", algorithm=algorithm)
herring.barrier()  # the victim may be done with it before the others
if rank == victim:
    handle = herring.allreduce_async(large, name="last", algorithm=algorithm)
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    herring.allreduce(large, name="last", algorithm=algorithm)
    while True:
        herring.allreduce(large, "sum", algorithm=algorithm)
except herring.PeerLostError as error:
    took = time.monotonic() - start
    assert f"rank {victim}" in str(error), error
    print(f"survivor {rank} learned in {took:.2f} s", flush=True)
"""


@pytest.mark.parametrize("algorithm", ["server", "tree", "ring", "butterfly"])
@pytest.mark.parametrize("victim", [0, 2])
def test_everybody_learns_of_a_killed_worker(algorithm: str, victim: int) -> None:
    layout = ["-n", "4", "--nodes", "4", "--servers", "1"]
    assert any(
        seconds_until_known(layout, VICTIM, victim, survivors=3, ALGORITHM=algorithm)[0] < 2
        for _attempt in range(2)
    )


# A rank stands still in the middle of an operation that all have begun, unnoticed by heartbeats.
# Only rank 3 (after it in the ring) has a deadline: who is overdue first speaks for all.
STANDING = """
herring.init()
deadline = 2 if herring.rank() == 3 else 100
algorithm = os.environ["ALGORITHM"]
large = np.zeros(20_000_000, np.float32)
herring.allreduce(large[:1000], "sum", algorithm=algorithm)
herring.barrier()
handle = herring.allreduce_async(large, "sum", name="x", algorithm=algorithm, timeout=deadline)
if herring.rank() == 2:
    time.sleep(0.03)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    handle.wait()
except herring.TimeoutError as error:
    print(f"told: {error}", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("algorithm", "nodes", "pattern"),
    [
        ("ring", 4, r"allreduce 'x' \(ring, 20000000 float32\) waited [\d.]+ s for (.*)"),
        ("herring", 4, r"'x' .*has waited [\d.]+ s for segments of (.*)"),
        ("herring", 1, r"'x' .*has waited [\d.]+ s for (.*), which did not"),
    ],
)
def test_a_deadline_names_whom_it_waits_for(algorithm: str, nodes: int, pattern: str) -> None:
    layout = ["-n", "4", "--nodes", str(nodes), "--servers", "1" if nodes > 1 else "0"]
    job = run_job(
        layout, STANDING, timeout=12, HERRING_HEARTBEAT_TIMEOUT="100", ALGORITHM=algorithm
    )
    told = re.findall(f"told: .*{pattern}", job.stdout)
    assert told, job.stdout[-4000:]
    assert all(text.startswith("rank 2 (") for text in told), told


LEAVING = """
# Who has done its part may leave while others still receive.
herring.init()
rank, size = herring.rank(), herring.size()
for algorithm in ("tree", "server"):
    array = np.full(2_000_000, rank, np.float32)
    herring.allreduce(array, "sum", algorithm=algorithm)
    assert (array == size * (size - 1) / 2).all()
herring.shutdown()
"""


def test_leaving_after_the_last_operation() -> None:
    expect_success(run_job(["-n", "5", "--nodes", "5", "--servers", "1"], LEAVING))


def test_wire_bytes_are_those_of_the_model(tmp_path: Path) -> None:
    for algorithm in ("server", "tree", "ring", "butterfly"):
        path = tmp_path / f"{algorithm}.json"
        command = [sys.executable, "-m", "herring.launch.cli", "run", "-n", "4", "--nodes", "4"]
        command += ["--servers", "1", "--", sys.executable, "-m", "herring.bench", "allreduce"]
        command += ["--sizes", "4M", "--iterations", "2", "--warmup", "1", "--check"]
        command += ["--algorithm", algorithm, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (entry,) = json.loads(path.read_text())["results"]
        assert entry["wrong"] == 0
        sent = 4 * entry["wire_bytes_per_worker"]
        total = models.wire(algorithm, 4, entry["bytes"]).total_bytes
        assert total <= sent <= total * 1.01, (algorithm, sent, total)
