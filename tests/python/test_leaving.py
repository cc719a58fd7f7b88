"""Ranks leave while others still need them: every wait ends with an error that says who left.

Where a wait must end at once, the deadline is long: only news of the rank that left can end the
wait within the job's time limit.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import expect_success, program, run_job

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
            assert "if the rank that left has failed, see its output" in str(error), error
            print("told", flush=True)
            from support import stay_until_all_know
            stay_until_all_know(rank, range(1, herring.size()))
        assert done == 3, done
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("told") == int(layout[1]) - 1


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_who_calls_long_after_somebody_has_left_is_told(layout: list[str]) -> None:
    # Rank 0's process, and its server with it, has ended before the others call.
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
            from support import stay_until_all_know
            stay_until_all_know(herring.rank(), range(1, herring.size()))
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("told") == int(layout[1]) - 1


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_what_was_complete_for_the_leaver_completes_for_all(layout: list[str]) -> None:
    # The rank leaves as soon as it has its result, when others may not have theirs yet.
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


THREE = {
    "one-node": ["-n", "3"],
    "colocated-servers": ["-n", "3", "--nodes", "2"],
    "three-nodes": ["-n", "3", "--nodes", "3"],
    "dedicated-servers": ["-n", "3", "--servers", "2"],
}


# Rank 0 hosts the rendezvous. In these layouts it also hosts a server that the others use. Then its
# process stays for them, so that only time can pass; otherwise the rendezvous ends soon.
STAYS = ("one-node", "colocated-servers")
FROM_RANK_0 = """
        from support import has_rendezvous, meet_outside, until
        herring.init()
        host = np.array([os.getpid() if herring.rank() == 0 else 0])
        herring.allreduce(host, "sum")
        since = time.monotonic()
        def rank_0_has_left():
            if os.environ["STAYS"] == "yes":
                return time.monotonic() > since + 2.5
            return not has_rendezvous(host[0])
"""


def run_from_rank_0(layouts: dict[str, list[str]], layout: str, script: str, *more: str) -> str:
    """Runs a script after `FROM_RANK_0` and returns its output."""
    stays = "yes" if layout in STAYS else "no"
    options = [*layouts[layout], *more]
    return run_job(options, FROM_RANK_0 + script, HERRING_TIMEOUT="600", STAYS=stays).stdout


@pytest.mark.parametrize("layout", THREE)
def test_a_group_without_the_leaver_goes_on(layout: str) -> None:
    output = run_from_rank_0(
        THREE,
        layout,
        """
        group = herring.new_group([1, 2])
        herring.barrier()
        if herring.rank() == 0:
            herring.shutdown()
        else:
            calls_since = 0
            while calls_since < 5:
                time.sleep(0.02)  # leaves the processors to others
                array = np.full(100_000, herring.rank(), np.float32)
                assert (herring.allreduce(array, "sum", group=group) == 3).all()
                left = np.array([rank_0_has_left()], np.int32)
                calls_since += int(herring.allreduce(left, "min", group=group)[0])
            print("went on", flush=True)
    """,
    )
    assert output.count("went on") == 2
    assert "what all ranks did last" not in output, output


@pytest.mark.parametrize("layout", THREE)
def test_a_death_after_rank_0_has_left_ends_waits(layout: str) -> None:
    # Nobody hosts the rendezvous any more, so only connections tell of the death.
    output = run_from_rank_0(
        THREE,
        layout,
        """
        group = herring.new_group([1, 2])
        herring.barrier()
        if herring.rank() == 0:
            herring.shutdown()
        else:
            array = np.ones(1, np.float32)
            until(rank_0_has_left)
            herring.barrier(group=group)
            meet_outside(herring.rank(), [1, 2])
            if herring.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            raises(herring.PeerLostError, "rank 1 (", herring.allreduce, array, group=group)
            print("told", flush=True)
    """,
        "--keep-going",
    )
    assert output.count("told") == 1, output


FOUR = {
    "one-node": ["-n", "4"],
    "one-node-with-a-server": ["-n", "4", "--servers", "1"],
    "two-nodes-with-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "four-nodes": ["-n", "4", "--nodes", "4"],
}


@pytest.mark.parametrize("planned", [False, True], ids=["named", "planned"])
@pytest.mark.parametrize("layout", FOUR)
def test_who_leaves_after_rank_0_is_missed_at_once(layout: str, planned: bool) -> None:
    output = run_from_rank_0(
        FOUR,
        layout,
        f"""
        group, others = herring.new_group([1, 2, 3]), herring.new_group([1, 2])
        if herring.rank() != 0:
            plan = herring.PlannedReduction([(100_000, "float32")], name="plan", group=group)
        def step():
            plan.begin()
            plan.ready(0)
            plan.wait()
        herring.barrier()
        if herring.rank() == 0:
            herring.shutdown()
        else:
            until(rank_0_has_left)
            herring.barrier(group=group)
            if herring.rank() == 3:
                herring.shutdown()
            elif {planned}:
                raises(herring.PeerLostError, "has left the job", step)
            else:
                raises(herring.PeerLostError, "rank 3 (", herring.barrier, group=group)
            if others.rank is not None:
                herring.barrier(group=others)
                print("told", flush=True)
    """,
    )
    assert output.count("told") == 2, output
    assert "waits in shutdown()" not in output, output


@pytest.mark.parametrize("layout", [FOUR["one-node"], FOUR["four-nodes"]], ids=["one", "four"])
def test_a_series_keeps_the_server_of_a_rank_that_leaves(layout: list[str]) -> None:
    output = expect_success(
        run_job(
            layout,
            """
        herring.init()
        rank = herring.rank()
        group = herring.new_group([1, 2, 3])
        call = dict(sync="majority", name="series", group=group)
        if rank != 0:
            herring.allreduce(np.ones(10_000, np.float32), **call)
        herring.barrier()
        if rank == 0:
            herring.shutdown()
        else:
            until = time.monotonic() + (0.5 if rank == 3 else 2)
            while time.monotonic() < until:
                time.sleep(0.02)  # leaves the processors to others
                herring.allreduce(np.ones(10_000, np.float32), **call)
            print("went on", flush=True)
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("went on") == 3


@pytest.mark.parametrize("layout", [THREE["one-node"], THREE["three-nodes"]], ids=["one", "three"])
def test_a_message_on_its_way_keeps_the_server_of_a_rank_that_leaves(
    layout: list[str], tmp_path: Path
) -> None:
    expect_success(
        run_job(
            layout,
            """
        from support import is_leaving, tell, tell_when, told
        herring.init()
        rank, array = herring.rank(), np.full(10, herring.rank())
        herring.barrier()
        if rank == 1:
            sent = herring.send_async(array, to=2)
            tell("sent")
            sent.wait()
        elif rank == 2:
            told("leaves")
            time.sleep(1.5)
            herring.receive(array, source=1)
            assert (array == 1).all()
        else:
            told("sent")
            tell_when(is_leaving, "leaves")
            herring.shutdown()
    """,
            FOLDER=str(tmp_path),
        )
    )


def test_servers_stay_while_others_compute_longer_than_calls_may_wait() -> None:
    expect_success(
        run_job(
            THREE["dedicated-servers"],
            """
        herring.init(timeout=1)
        group = herring.new_group([1, 2], timeout=600)
        herring.barrier(timeout=600)
        if herring.rank() == 0:
            herring.shutdown()
        else:
            time.sleep(4)
            assert herring.allreduce(np.ones(1), "sum", group=group, timeout=600) == 2
    """,
        )
    )


USE = """
        herring.init()
        from support import meet_outside
        group = herring.new_group([1, 2])
        herring.barrier()
        meet_outside(herring.rank(), range(3))
        def use():
            try:
                while True:
                    herring.allreduce(np.ones(1), group=group)
            except herring.PeerLostError as error:
                assert "rank 0 (" in str(error), error
                print("told", flush=True)
"""


def test_a_rank_that_fails_waits_for_nobody() -> None:
    job = run_job(
        [*THREE["one-node"], "--keep-going"],
        USE
        + """
        if herring.rank() == 0:
            raise ValueError("a mistake of the program")
        use()
    """,
        HERRING_TIMEOUT="600",
    )
    assert job.stdout.count("told") == 2 and "a mistake of the program" in job.stdout, job.stdout


def test_ctrl_c_ends_the_wait_of_a_rank_that_leaves() -> None:
    output = expect_success(
        run_job(
            THREE["one-node"],
            USE
            + """
        from support import interrupt_when, is_leaving
        if herring.rank() == 0:
            interrupt_when(is_leaving)
            raises(KeyboardInterrupt, "", herring.shutdown)
        else:
            use()
    """,
            HERRING_TIMEOUT="600",
        )
    )
    assert output.count("told") == 2


@pytest.mark.parametrize("series", [True, False], ids=["partial-series", "no-series"])
def test_a_server_stays_for_what_moves_between_others(series: bool) -> None:
    # Rank 0 has no rows and finishes early, while the others move 32 MB through its server.
    expect_success(
        run_job(
            ["-n", "3", "--nodes", "3"],
            f"""
        herring.init()
        rank, size = herring.rank(), herring.size()
        if {series}:
            herring.allreduce(np.ones(8, np.float32), sync="majority", name="series")
        rows = [0] + [8_000_000] * (size - 1) if rank else [0] * size
        received = herring.alltoall(np.full(sum(rows), rank, np.float32), rows)
        if rank == 0:
            herring.shutdown()
        assert received.size == sum(rows)
        for other in range(1, size) if rank else ():
            assert (received[(other - 1) * rows[1] : other * rows[1]] == other).all()
    """,
        )
    )


@pytest.mark.parametrize(
    ("layout", "buffers"),
    [("one-node", True), ("one-node", False), ("one-dedicated-server", True)],
    ids=["batch-norm", "plain", "batch-norm-two-nodes"],
)
def test_uneven_data_in_training_names_who_ran_out_of_it(layout: str, buffers: bool) -> None:
    pytest.importorskip("torch")
    script = program("leaving_training", "buffers" if buffers else "plain")
    output = expect_success(run_job(LEAVERS[layout], script, HERRING_TIMEOUT="600"))
    assert output.count("told") == 1


def test_a_deadline_is_kept_although_no_server_can() -> None:
    output = expect_success(
        run_job(
            ["-n", "2", "--nodes", "2", "--servers", "2"],
            """
        from support import meet_outside, server_processes
        herring.init(timeout=1)
        herring.barrier(timeout=600)
        meet_outside(herring.rank(), range(2))
        if herring.rank() == 0:
            for pid in server_processes():
                os.kill(pid, signal.SIGSTOP)
        raises(herring.TimeoutError, "'stuck'", herring.allreduce, np.zeros(300_000), name="stuck")
        print("ended", flush=True)
    """,
        )
    )
    assert output.count("ended") == 2


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_a_worker_that_is_stopped_for_a_while_is_not_lost(layout: list[str]) -> None:
    # Rank 0, which also hosts the rendezvous, stops for twice the heartbeat timeout.
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


def test_a_server_that_stood_still_accuses_nobody(tmp_path: Path) -> None:
    """Ranks have sent everything meanwhile, but the server has not read it."""
    output = expect_success(
        run_job(
            ["-n", "2", "--nodes", "2", "--servers", "2"],
            """
        from support import server_process, tell, told
        herring.init()
        plan = herring.PlannedReduction([(100_000, "float32")], name="model")
        for step in range(6):
            plan.begin()
            if step == 3 and herring.rank() == 1:
                tell("has round 2")
                told("stopped")
            if step == 3 and herring.rank() == 0:
                told("has round 2")
                server = server_process()
                os.kill(server, signal.SIGSTOP)
                if os.fork() == 0:
                    tell("stopped")
                    told("ready 0", "ready 1")
                    time.sleep(7)
                    os.kill(server, signal.SIGCONT)
                    os._exit(0)
            plan.ready(0)
            if step == 3:
                tell(f"ready {herring.rank()}")
            plan.wait()
        print("is done", flush=True)
    """,
            HERRING_WARN_AFTER="3",
            FOLDER=str(tmp_path),
        )
    )
    assert output.count("is done") == 2
    assert "'model' (round 3" not in output, (
        output
    )  # as in "'model' (round 3, buffer 0) has waited"


def test_a_planned_round_ends_although_a_series_of_partial_ones_goes_on(tmp_path: Path) -> None:
    output = expect_success(
        run_job(
            ["-n", "3"],
            program("leaving_planned"),
            HERRING_TIMEOUT="600",
            FOLDER=str(tmp_path),
        )
    )
    assert output.count("told") == 2


def test_a_neighbour_that_fails_is_noticed_although_the_rendezvous_has_ended() -> None:
    layout = ["-n", "4", "--nodes", "2", "--keep-going"]
    output = run_job(layout, program("leaving_then_failure"), HERRING_TIMEOUT="600").stdout
    told = r"rank 2 hears: lost the connection to rank 3 .*, which has failed or died"
    assert re.search(told, output), output


def test_a_series_that_lost_a_server_ends_nothing_after_its_time_out() -> None:
    output = expect_success(
        run_job(
            ["-n", "3", "--nodes", "3"],
            program("leaving_lost_server"),
            HERRING_TIMEOUT="6",
        )
    )
    assert output.count("went on") == 2


@pytest.mark.parametrize("algorithm", ["server", "tree", "butterfly"])
def test_a_schedule_does_not_need_who_has_done_its_part(algorithm: str) -> None:
    expect_success(
        run_job(
            ["-n", "4", "--nodes", "4"],
            f"""
        herring.init()
        array = np.full(10_000_000, herring.rank() + 1.0, np.float32)
        herring.allreduce(array, "sum", algorithm="{algorithm}")
        herring.shutdown()
        assert (array == 10).all()
    """,
            HERRING_TIMEOUT="600",
        )
    )


def test_what_was_sent_arrives_although_the_sender_leaves_while_it_is_written_to() -> None:
    output = expect_success(
        run_job(
            ["-n", "2", "--nodes", "2"],
            program("leaving_sender"),
            HERRING_TIMEOUT="600",
        )
    )
    assert "received" in output


@pytest.mark.parametrize("call", ["barrier", "join"])
@pytest.mark.parametrize("layout", [["-n", "3"], ["-n", "3", "--nodes", "3", "--servers", "1"]])
def test_messages_between_others_need_nobody_who_has_left(
    layout: list[str], call: str, tmp_path: Path
) -> None:
    output = expect_success(
        run_job(
            layout,
            program("leaving_messages", call),
            HERRING_TIMEOUT="600",
            FOLDER=str(tmp_path),
        )
    )
    assert output.count("exchanged") == 2


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_a_group_that_is_there_for_one_is_there_for_all(layout: list[str]) -> None:
    expect_success(
        run_job(
            layout,
            """
        herring.init()
        herring.barrier()
        group = herring.new_group([0, 1])
        assert group.size == 2
        if herring.rank() == 0:
            herring.shutdown()
    """,
            HERRING_TIMEOUT="600",
        )
    )


@pytest.mark.parametrize("layout", LEAVERS.values(), ids=LEAVERS)
def test_a_reserved_name_harms_nobody(layout: list[str]) -> None:
    expect_success(
        run_job(
            layout,
            """
        herring.init()
        if herring.rank() == 0:
            raises(herring.InvalidArgumentError, "herring.join", herring.allreduce,
                   np.ones(3, np.float32), name="herring.join")
        herring.join()
        array = np.ones(300_000, np.float32)
        assert herring.allreduce(array, "sum")[0] == herring.size()
    """,
            HERRING_TIMEOUT="600",
        )
    )


def test_nothing_is_kept_of_the_names_in_groups_that_were_destroyed() -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            """
        from herring.arrays import names
        herring.init()
        kept = None
        for step in range(20):
            with herring.new_group([0, 1]) as group:
                herring.allreduce(np.ones(3, np.float32), group=group)
                herring.barrier(group=group)
            kept = kept or len(names._counts)
        assert len(names._counts) == kept, names._counts
    """,
        )
    )
