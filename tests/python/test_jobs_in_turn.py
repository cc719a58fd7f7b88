"""Several jobs in turn in the same processes, and how a job starts or fails to start."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import warm
from jobs import PREAMBLE, expect_success, program, run_job
from ports import held, port_of

LAYOUTS = {
    "one-node": ["-n", "2"],
    "colocated-servers": ["-n", "3", "--nodes", "2"],
    "dedicated-servers": ["-n", "2", "--nodes", "2", "--servers", "2"],
}

IN_TURN = """
for turn in range(25):
    herring.init()
    herring.barrier()
    if turn % 5 == 0:
        array = np.full(100_000, herring.rank() + turn, np.float32)
        herring.allreduce(array, "sum")
        assert (array == sum(r + turn for r in range(herring.size()))).all()
    herring.shutdown()
"""


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_job_after_job_in_the_same_processes(layout: list[str]) -> None:
    expect_success(run_job(layout, IN_TURN))


@pytest.mark.parametrize("turns", [12, 200])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.timeout(300)
def test_all_meet_anew_whatever_was_left_open(layout: list[str], turns: int) -> None:
    expect_success(run_job(layout, program("left_open", str(turns), "1"), 280))


def test_a_rank_that_is_early_for_the_next_job_waits_for_the_last_one_to_end(tmp_path) -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            """
        herring.init()
        herring.barrier()
        if herring.rank() == 0:  # hosts the rendezvous, and is in no hurry
            while len(os.listdir(os.environ["PLACE"])) < 2:
                time.sleep(0.01)
            time.sleep(1)  # the others are told to come again, many times
        else:
            open(os.path.join(os.environ["PLACE"], str(herring.rank())), "w").close()
        herring.shutdown()
        herring.init()
        assert herring.allreduce(np.ones(3), "sum")[0] == 3
    """,
            PLACE=str(tmp_path),
        )
    )


def run_ranks(script: str, size: int, **environment: dict[int, str] | str) -> list[str]:
    """Runs `script` as ranks that were started by hand, and returns their outputs."""
    holder = held()
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
    keep["OMP_NUM_THREADS"] = "1"
    processes = []
    for rank in range(size):
        mine = {
            "HERRING_RANK": str(rank),
            "HERRING_SIZE": str(size),
            "HERRING_RENDEZVOUS": f"127.0.0.1:{port_of(holder)}",
            "HERRING_SECRET": "ab" * 32,
        }
        for name, value in environment.items():
            if isinstance(value, str):
                mine[name] = value
            elif rank in value:
                mine[name] = value[rank]
        processes.append(
            warm.Popen(
                [sys.executable, "-c", PREAMBLE + script],
                env={**keep, **mine},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        return [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
        holder.close()


def test_job_after_job_at_an_address_that_rank_zero_binds_anew() -> None:
    outputs = run_ranks(IN_TURN + "print('done')", 2)
    assert [output.strip() for output in outputs] == ["done", "done"], outputs


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_setting_on_one_rank_is_the_same_error_on_all(wrong: int) -> None:
    # Without the error, the other ranks would wait for ten minutes.
    outputs = run_ranks(
        "herring.init()",
        3,
        HERRING_CONNECT_TIMEOUT={r: "600" for r in range(3) if r != wrong},
        HERRING_FLOWS={wrong: "1000"},
    )
    for rank, output in enumerate(outputs):
        last = output.strip().splitlines()[-1]
        assert last.startswith("herring.errors.ConfigurationError"), (rank, output)
        assert "HERRING_FLOWS" in last and "1000" in last, (rank, output)
        assert rank == wrong or f"rank {wrong}:" in last, (rank, output)


def test_who_waits_alone_says_for_whom_and_gives_up_in_time() -> None:
    outputs = run_ranks(
        "if os.environ['HERRING_RANK'] == '2': sys.exit()\n"
        "raises(herring.TimeoutError, 'rank 2 of 3', herring.init)\n"
        "print('gave up')",
        3,
        HERRING_WARN_AFTER="0.5",
        HERRING_CONNECT_TIMEOUT="15",
    )
    for output in outputs[:2]:
        assert re.search(r"warning: .*has waited .* for rank 2 of 3", output), output
        assert "gave up" in output, output


@pytest.mark.parametrize("found_by", ["address", "note"])
def test_who_waits_for_rank_zero_says_so_and_gives_up_in_time(found_by: str) -> None:
    given = {"HERRING_SECRET": ""} if found_by == "note" else {}
    outputs = run_ranks(
        "if os.environ['HERRING_RANK'] == '0': sys.exit()\n"
        "raises(herring.TimeoutError, 'rank 0', herring.init)\n"
        "print('gave up')",
        2,
        HERRING_WARN_AFTER="0.5",
        HERRING_CONNECT_TIMEOUT="10",
        **given,
    )
    assert "warning" in outputs[1] and "for rank 0" in outputs[1], outputs
    assert "gave up" in outputs[1], outputs


def test_what_belongs_to_an_ended_job_says_what_to_do() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            """
        from herring.planned import PlannedReduction
        herring.init()
        herring.init()  # a cell that is run again
        old = PlannedReduction([(10, "float32")], name="gradients")
        herring.shutdown()
        raises(herring.ShutdownError, "make it anew", old.begin)
        herring.init()
        raises(herring.ShutdownError, "make it anew", old.begin)
        new = PlannedReduction([(10, "float32")], name="gradients")
        new.begin()
        new.ready(0)
        new.wait()
    """,
        )
    )
