"""All-reduce by messages between workers: every algorithm against NumPy, and failures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import warm
from herring import models
from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", [*LAYOUTS, "two"])
def test_every_algorithm(layout: str) -> None:
    options = {**LAYOUTS, "two": ["-n", "2", "--nodes", "2", "--servers", "1"]}[layout]
    expect_success(run_job(options, program("algorithms")))


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "uneven-nodes"])
def test_many_at_a_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("algorithms_beside")))


def test_mistakes_name_what_is_wrong_and_the_job_goes_on() -> None:
    expect_success(
        run_job(["-n", "3", "--nodes", "3", "--servers", "1"], program("algorithms_mistakes"))
    )


@pytest.mark.parametrize("algorithm", ["server", "tree", "ring", "butterfly", "doubling"])
@pytest.mark.parametrize("victim", [0, 2])
def test_everybody_learns_of_a_killed_worker(algorithm: str, victim: int, tmp_path: Path) -> None:
    done = run_job(
        ["-n", "4", "--nodes", "4", "--servers", "1", "--keep-going"],
        program("algorithms_death"),
        VICTIM=str(victim),
        ALGORITHM=algorithm,
        FOLDER=str(tmp_path),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
    )
    assert done.stdout.count("has learned of it") == 3, done.stdout[-4000:]


@pytest.mark.parametrize(
    ("algorithm", "nodes", "pattern"),
    [
        ("ring", 4, r"allreduce 'x' \(ring, 20000000 float32\) waited [\d.]+ s for rank 2 \("),
        # Other ranks may have sent no more, because they wait for the server in rank 2's process.
        (
            "herring",
            4,
            r"'x' .*waited [\d.]+ s for (.*rank 2 \(|segments that no rank has sent yet)",
        ),
        ("herring", 1, r"'x' .*waited [\d.]+ s for rank 2 \([^)]*\), which did not"),
    ],
)
def test_a_deadline_names_whom_it_waits_for(
    algorithm: str, nodes: int, pattern: str, tmp_path: Path
) -> None:
    layout = ["-n", "4", "--nodes", str(nodes), "--servers", "1" if nodes > 1 else "0"]
    job = run_job(
        layout,
        program("algorithms_standing"),
        HERRING_HEARTBEAT_TIMEOUT="600",
        ALGORITHM=algorithm,
        FOLDER=str(tmp_path),
    )
    told = [line for line in job.stdout.splitlines() if "told: " in line]
    assert told, job.stdout[-4000:]
    for line in told:
        assert re.search(pattern, line), line
        # Beside other load, another rank may be starved indeed.
        assert "rank 2" in re.findall(r"; (rank .*?) is stopped or starved", line), line
        assert not all(f"rank {rank} (" in line for rank in range(4)), line


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
    for algorithm in ("server", "tree", "ring", "butterfly", "doubling"):
        path = tmp_path / f"{algorithm}.json"
        command = [sys.executable, "-m", "herring.command.cli", "run", "-n", "4", "--nodes", "4"]
        command += ["--servers", "1", "--", sys.executable, "-m", "herring.bench", "allreduce"]
        command += ["--sizes", "4M", "--iterations", "2", "--warmup", "1", "--check"]
        command += ["--algorithm", algorithm, "--json", str(path)]
        done = warm.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (entry,) = json.loads(path.read_text())["results"]
        assert entry["wrong"] == 0
        sent = 4 * entry["wire_bytes_per_worker"]
        total = models.wire(algorithm, 4, entry["bytes"]).total_bytes
        assert total <= sent <= total * 1.01, (algorithm, sent, total)
