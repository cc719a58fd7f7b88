"""Series whose ranks flush after different numbers of rounds: same end for all, nothing lost."""

from __future__ import annotations

import pathlib
import re
import textwrap

import pytest

from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(120)

LAYOUTS = {
    "one-node": (["-n", "4"], {}),
    "colocated": (["-n", "4", "--nodes", "4"], {}),
    "dedicated": (["-n", "4", "--nodes", "2", "--servers", "2"], {"HERRING_PROXIES": "2"}),
    "proxies": (
        ["-n", "4", "--nodes", "4", "--servers", "1"],
        {"HERRING_PROXIES": "4", "HERRING_FLOWS": "2"},
    ),
}

# Each rank makes a number of steps of its own, at random times, then flushes. The sum of what was
# applied is the sum of what was contributed, and all ranks have seen the same rounds.
SERIES = """
from herring.partial import PartialReduction, Quorum
herring.init()
rank, size = herring.rank(), herring.size()

def run(seed, elements, sync, op="sum", steps=None, statistics=None):
    common, random = np.random.default_rng(seed), np.random.default_rng([seed, rank])
    steps = int(common.integers(0, 16, size)[rank]) if steps is None else steps
    pause = float(common.choice([0, 0.002, 0.012]))
    dtype = "int64" if op == "sum" else "float64"
    series = PartialReduction(elements, dtype, sync=sync, op=op, statistics=statistics)
    result = np.empty(elements, dtype)
    produced, applied = np.zeros(elements, dtype), np.zeros(elements, dtype)
    digest, seen = hashlib.sha256(), []
    def apply(info):
        applied[:] += result * info.divisor
        digest.update(result.tobytes())
        seen.append((info.round, info.last, [(one.rank, one.upto) for one in info.contributors]))
        if random.random() < 0.2:
            time.sleep(random.random() * pause)
    eager = seed % 3 > 0
    for step in range(steps):
        if random.random() < 0.5:
            time.sleep(random.random() * pause)
        mine = random.integers(0, 1000, elements).astype(dtype)
        produced += mine
        if eager:
            for info in series.step(mine, result):
                apply(info)
        else:
            result[:] = mine
            apply(series.allreduce(result))
    result[:] = rank
    produced += result
    for info in series.flush(result):
        apply(info)
    assert series.contributions == (steps + 1, steps + 1)
    assert [number for number, _, _ in seen] == list(range(len(seen)))
    assert [last for _, last, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert [uptos for _, _, uptos in seen][-1], "nobody was in the last round"
    total = np.sum(herring.allgather(produced[None]), axis=0)
    assert (total == applied).all(), (seed, sync, total[:4], applied[:4])
    everyone = herring.allgather_object((digest.hexdigest(), seen))
    assert all(one == everyone[0] for one in everyone), (seed, sync, everyone)
    assert series.memory <= 2 * (series.quorum.staleness + 3), series.memory
    return digest.hexdigest(), seen
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_make_different_numbers_of_steps_end_alike(layout: str) -> None:
    options, environment = LAYOUTS[layout]
    script = """
    modes = ["solo", "majority", Quorum(3), Quorum(4), Quorum(1, grace=0.001, staleness=0),
             Quorum(2, staleness=1), Quorum(2, grace=0.002, divisor="contributors")]
    ahead = 0
    for seed in range(28):
        sync = modes[seed % len(modes)]
        elements = [1, 512, 50_000][seed % 3]
        op = "average" if seed % 4 == 0 and not isinstance(sync, Quorum) else "sum"
        _, seen = run(seed, elements, sync, op)
        uptos = dict(pair for _, _, uptos in seen for pair in uptos)
        counted = {}
        for number, _, these in seen:
            counted.update({r: number for r, upto in these if upto == uptos[r]})
        ahead += sum(number < len(seen) - 1 for number in counted.values())
    assert ahead > 10, f"only {ahead} ranks flushed before others contributed anew"
    """
    expect_success(run_job(options, SERIES + textwrap.dedent(script), **environment))


def test_equally_many_rounds_before_it_make_it_a_full_round() -> None:
    expect_success(
        run_job(
            ["-n", "4", "--nodes", "2", "--servers", "2"],
            """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank, size = herring.rank(), herring.size()
        random = np.random.default_rng(rank)
        for elements in (64, 50_000):
            for sync in ("solo", "majority", Quorum(3), Quorum(1, staleness=0)):
                series = PartialReduction(elements, "int64", sync=sync, op="sum")
                work = np.ones(elements, np.int64)
                for _ in range(8):
                    time.sleep(random.random() * 0.004)
                    series.allreduce(work)
                infos = list(series.flush(work))
                assert len(infos) == 1 and infos[0].last and infos[0].round == 8, infos
                assert [one.rank for one in infos[0].contributors] == list(range(size)), infos
    """,
        )
    )


def test_a_replay_repeats_it(tmp_path: pathlib.Path) -> None:
    script = """
    path, statistics = os.environ["RECORDING"], herring.RoundStatistics()
    cases = [(1, 300, "solo"), (2, 50_000, "majority"), (5, 50_000, Quorum(1, staleness=2))]
    then = [run(*case, statistics=statistics) for case in cases]
    statistics.save(path)
    for now in (herring.RoundStatistics(), herring.RoundStatistics()):
        again = [run(seed, elements, herring.Replay(path), statistics=now)
                 for seed, elements, _ in cases]
        assert again == then
        assert now.rounds == statistics.rounds and now.staleness == statistics.staleness
    """
    expect_success(
        run_job(
            ["-n", "4", "--nodes", "2", "--servers", "2"],
            SERIES + textwrap.dedent(script),
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


@pytest.mark.parametrize("elements", [512, 100_000])
@pytest.mark.parametrize("how", ["kill", "leave"])
def test_nobody_waits_for_one_that_is_gone_before_it_flushed(elements: int, how: str) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
        series = PartialReduction(elements, "int64", sync=Quorum(2), op="sum")
        work = np.ones(elements, np.int64)
        applied, counted, rounds = np.zeros(elements, np.int64), {}, 0
        def note(info):
            global rounds
            applied[:] += work
            counted.update({one.rank: one.upto for one in info.contributors})
            rounds += 1
        for step in range(12 if rank == 3 else 3 + rank):
            work[:] = 1
            note(series.allreduce(work))
        if rank == 3:  # the others have flushed, and follow
            if os.environ["HOW"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            herring.shutdown()
            sys.exit(0)
        work[:] = 1
        for info in series.flush(work):
            note(info)
        assert info.last and info.round + 1 == rounds >= 12, info
        ((lost, there, announced),) = info.lost
        assert lost == 3 and there == announced == 12 == counted[3], info.lost
        assert series.contributions == (4 + rank, 4 + rank)
        assert (applied == sum(counted.values())).all(), (applied[:2], counted)
        assert counted[rank] == 4 + rank
        print(f"survivor {rank} saw {rounds} rounds", flush=True)
    """,
        ELEMENTS=str(elements),
        HOW=how,
    )
    told = re.findall(r"survivor \d saw (\d+) rounds", job.stdout)
    assert len(told) == 3 and len(set(told)) == 1, job.stdout[-6000:]


@pytest.mark.parametrize("elements", [512, 100_000])
def test_the_others_go_on_when_one_that_has_flushed_dies(elements: int) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
        series = PartialReduction(elements, "int64", sync=Quorum(3), op="sum")
        work = np.ones(elements, np.int64)
        rounds = 0
        if rank == 2:
            for info in series.flush(work):
                rounds += 1
                if rounds == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
        for step in range(30):
            work[:] = 1
            series.allreduce(work)
            rounds += 1
        for info in series.flush(work):
            rounds += 1
        ((lost, there, announced),) = info.lost
        assert (lost, there, announced) == (2, 1, 1), info.lost
        print(f"survivor {rank} saw {rounds} rounds", flush=True)
    """,
        ELEMENTS=str(elements),
    )
    told = re.findall(r"survivor \d saw (\d+) rounds", job.stdout)
    assert len(told) == 3 and len(set(told)) == 1, job.stdout[-6000:]


def test_one_that_never_flushes_is_named() -> None:
    job = run_job(
        ["-n", "3"],
        """
        herring.init()
        array = np.ones(100, np.float32)
        for step in range(3 + herring.rank()):
            herring.allreduce(array, sync="solo", name="a")
        try:
            if herring.rank() == 1:
                herring.barrier(timeout=30)
            herring.flush(array, name="a")
        except herring.TimeoutError as error:
            text = str(error)
            assert "'a', round" in text and "s for rank 1 (" in text, text
            assert "rank 0" not in text and "rank 2" not in text, text
            assert "flushes" in text, text
            print("told", flush=True)
    """,
        HERRING_TIMEOUT="2",
        HERRING_WARN_AFTER="1",
    )
    assert job.stdout.count("told") == 3, job.stdout[-4000:]
    assert "has waited" in job.stdout


def test_one_that_flushes_and_does_not_take_the_results_is_named() -> None:
    job = run_job(
        ["-n", "3"],
        """
        from herring.partial import PartialReduction
        herring.init()
        series = PartialReduction(8, "float32", sync="solo", name="a")
        array = np.ones(8, np.float32)
        try:
            if herring.rank() == 2:
                series.contribute(array, last=True)
                herring.barrier(timeout=30)
            for _ in range(1000):
                series.allreduce(array)
        except herring.TimeoutError as error:
            assert "s for rank 2 (" in str(error), error
            print(f"told after {series.rounds}", flush=True)
    """,
        HERRING_TIMEOUT="2",
        HERRING_WARN_AFTER="1",
    )
    # Not further ahead than its staleness, 4, allows.
    told = [int(rounds) for rounds in re.findall(r"told after (\d+)", job.stdout)]
    assert len(told) == 3 and max(told) <= 6, job.stdout[-4000:]


def test_flushes_that_are_repeated_or_too_many() -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            """
        from herring.partial import PartialReduction
        herring.init()
        rank, bad = herring.rank(), herring.InvalidArgumentError
        array = np.full(20, 1 + rank, np.float32)
        raises(bad, "no partial all-reduce named 'never' was begun", herring.flush, array,
               name="never")
        # Epochs of a name, each of which ends with a flush.
        for epoch in range(3):
            for step in range(rank + epoch):
                herring.allreduce(array.copy(), "sum", sync="majority", name="a")
            if rank + epoch == 0:
                herring.allreduce(array.copy(), "sum", sync="majority", name="a")
            last = herring.flush(array, name="a")[-1]
            assert all((one == last).all() for one in herring.allgather_object(last)), epoch
            raises(bad, "'a' was flushed already", herring.flush, array, name="a")
        # One that times out goes on where it was, without another contribution.
        herring.allreduce(array.copy(), "sum", sync="solo", name="b")
        if rank == 1:
            herring.allgather_object(None)
            results = herring.flush(array, name="b")
        else:
            raises(herring.TimeoutError, "is not complete after 0.1 s", herring.flush, array,
                   name="b", timeout=0.1)
            herring.allgather_object(None)
            results = herring.flush(np.zeros_like(array), name="b")
        everyone = herring.allgather_object(results[-1])
        assert all((one == everyone[0]).all() for one in everyone)
        # So does one whose caller left the loop.
        series = PartialReduction(20, "int64", sync="solo", op="sum")
        work, total = np.ones(20, np.int64), 0
        for step in range(1 + 3 * rank):
            work[:] = 1
            series.allreduce(work)
            total += work[0]
        work[:] = 1
        while not series.ended:
            for info in series.flush(work):
                total += work[0]
                break
        assert total == 3 + (1 + 4 + 7), total
        raises(bad, "was flushed already; begin another", lambda: list(series.flush(work)))
        raises(bad, "a contribution after its flush", series.allreduce, work)
    """,
        )
    )
