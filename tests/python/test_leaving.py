"""Ranks that leave while others still want something of them: every wait ends, and says who left.

The deadline is long where an end "at once" is meant, so that only news of the leaver can end a wait
within the job's time limit.
"""

from __future__ import annotations

import pytest

from jobs import expect_success, run_job

LEAVERS = {
    "one-node": ["-n", "2"],
    "colocated-servers": ["-n", "3", "--nodes", "2"],
    "one-dedicated-server": ["-n", "2", "--nodes", "2", "--servers", "1"],
}


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
@pytest.mark.parametrize("elements", [10, 300_000], ids=["small", "large"])
def test_who_goes_on_learns_who_has_left(layout: list[str], elements: int) -> None:
    output = expect_success(
        run_job(
            layout,
            f"""
        herring.init()
        rank, done = herring.rank(), 0
        try:
            for step in range(3 if rank == 0 else 6):
                herring.allreduce(np.zeros({elements}, np.float32))
                done += 1
        except herring.PeerLostError as error:
            assert "rank 0 (" in str(error) and "left the job" in str(error), error
            assert "use join() if ranks have different" in str(error), error
            print("told", flush=True)
        assert done == 3, done
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("told") == int(layout[1]) - 1


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_who_calls_long_after_somebody_has_left_is_told(layout: list[str]) -> None:
    # Rank 0's process, and its server with it, has ended by then.
    output = expect_success(
        run_job(
            layout,
            """
        herring.init()
        host = np.array([os.getpid() if herring.rank() == 0 else 0])
        herring.allreduce(host, "sum")
        if herring.rank() != 0:
            while os.path.exists(f"/proc/{host[0]}"):
                time.sleep(0.01)
            raises(herring.PeerLostError, "rank 0 (", herring.barrier)
            raises(herring.PeerLostError, "rank 0 (", herring.allreduce, np.zeros(300_000))
            print("told", flush=True)
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("told") == int(layout[1]) - 1


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_what_was_complete_for_the_leaver_completes_for_all(layout: list[str]) -> None:
    # The leaver goes the moment it has its result, while others may not have theirs yet.
    expect_success(
        run_job(
            layout,
            """
        herring.init()
        array = np.full(3_000_000, herring.rank() + 1.0, np.float32)
        herring.allreduce(array, "sum")
        if herring.rank() == 0:
            herring.shutdown()
        assert (array == sum(range(1, int(os.environ["HERRING_SIZE"]) + 1))).all()
    """,
        )
    )


TRAINING = """
import torch
from herring.torch import DistributedDataParallel
herring.init()
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)][: 2 if BUFFERS else 1]
net = DistributedDataParallel(torch.nn.Sequential(*layers))
steps = 0
try:
    for step in range(3 if herring.rank() == 0 else 6):
        net(torch.randn(8, 64)).sum().backward()
        steps += 1
except herring.PeerLostError as error:
    assert "rank 0 (" in str(error) and "left the job" in str(error), error
    assert "use join() if ranks have different" in str(error), error
    print("told", flush=True)
"""


@pytest.mark.parametrize(
    ("layout", "buffers"),
    [("one-node", True), ("one-node", False), ("one-dedicated-server", True)],
    ids=["batch-norm", "plain", "batch-norm-two-nodes"],
)
def test_uneven_data_in_training_names_who_ran_out_of_it(layout: str, buffers: bool) -> None:
    pytest.importorskip("torch")
    script = f"BUFFERS = {buffers}\n{TRAINING}"
    output = expect_success(run_job(LEAVERS[layout], script, HERRING_TIMEOUT="600"))
    assert output.count("told") == 1


def test_a_deadline_is_kept_although_no_server_can() -> None:
    output = expect_success(
        run_job(
            ["-n", "2", "--nodes", "2", "--servers", "2"],
            """
        import subprocess
        herring.init(timeout=1)
        herring.barrier()
        if herring.rank() == 0:
            for pid in subprocess.run(["pgrep", "-P", str(os.getppid()), "-f", "[s]erver --stay"],
                                      capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGSTOP)
        raises(herring.TimeoutError, "'stuck'", herring.allreduce, np.zeros(300_000), name="stuck")
        print("ended", flush=True)
    """,
        )
    )
    assert output.count("ended") == 2


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_a_worker_that_is_stopped_for_a_while_is_not_lost(layout: list[str]) -> None:
    # Twice the heartbeat time-out, and rank 0 hosts the rendezvous as well.
    expect_success(
        run_job(
            layout,
            """
        herring.init()
        herring.barrier()
        if herring.rank() == 0:
            if os.fork() == 0:
                os.kill(os.getppid(), signal.SIGSTOP)
                time.sleep(3)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
        for _ in range(50):
            assert herring.allreduce(np.ones(100_000, np.float32), "average")[0] == 1
    """,
        )
    )
