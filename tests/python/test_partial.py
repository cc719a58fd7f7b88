"""Partial all-reduces in real jobs: same bytes for all, nothing lost, nobody dead waited for."""

from __future__ import annotations

import pathlib
import re
import types

import pytest

from herring.partial import RoundStatistics
from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(120)

LAYOUTS = {
    "one-node": ["-n", "4"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated": ["-n", "3", "--nodes", "3"],
}

# Every rank sums what it produced and what it applied; random pauses make ranks late.
CONSERVES = """
from herring.partial import PartialReduction, Quorum
herring.init()
rank, size = herring.rank(), herring.size()
random = np.random.default_rng(100 + rank)
for elements, sync in [(512, "solo"), (512, "majority"), (200_000, "majority"),
                       (200_000, Quorum(1, grace=0.001, staleness=2)), (3000, Quorum(size))]:
    series = PartialReduction(elements, "int64", sync=sync, op="sum")
    work = np.empty(elements, np.int64)
    produced, applied = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    digest, actives = hashlib.sha256(), []
    for step in range(12):
        if random.random() < 0.3:
            time.sleep(random.random() * 0.02)
        work[:] = random.integers(0, 1000, elements)
        produced += work
        info = series.allreduce(work)
        assert info.round == step and info.divisor == 1
        applied += work
        digest.update(work.tobytes())
        actives.append(info.active)
        assert all(one.staleness <= series.quorum.staleness for one in info.contributors)
    assert min(actives) >= series.quorum.q, actives
    work[:] = 1
    produced += work
    for info in series.flush(work):
        applied += work
        digest.update(work.tobytes())
    assert info.last and len(info.contributors) == size
    assert series.contributions == (13, 13)
    total = np.sum(herring.allgather(produced[None]), axis=0)
    assert (total == applied).all(), (sync, total[:4], applied[:4])
    digests = herring.allgather_object(digest.hexdigest())
    assert len(set(digests)) == 1, (sync, digests)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_applied_is_what_was_produced(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], CONSERVES))


def test_rounds_arrive_in_order_from_several_proxies_and_flows() -> None:
    layout = LAYOUTS["dedicated"]
    expect_success(run_job(layout, CONSERVES, HERRING_PROXIES="2", HERRING_FLOWS="2"))


def test_replicas_that_differ_fail_the_job() -> None:
    job = run_job(
        ["-n", "2"],
        """
        from herring.partial import PartialReduction
        herring.init()
        series = PartialReduction(8, "float32", sync="majority")
        work = np.zeros(8, np.float32)
        series.allreduce(work)
        series.digest(100 + herring.rank())
        try:
            while True:
                series.allreduce(work)
        except herring.MismatchError as error:
            assert "differ after 1 rounds" in str(error), error
            print("told", flush=True)
    """,
    )
    assert job.stdout.count("told") == 2, job.stdout[-4000:]


def test_without_staleness_it_is_the_full_all_reduce_bit_for_bit() -> None:
    expect_success(
        run_job(
            ["-n", "3", "--nodes", "3", "--servers", "3"],
            """
        herring.init()
        rank = herring.rank()
        for name, elements in [("small", 900), ("large", 90_000)]:
            for kind, sync in [("q", herring.Quorum(3)), ("tau", herring.Quorum(1, staleness=0))]:
                for step in range(3):
                    mine = np.random.default_rng(9 * step + rank).standard_normal(elements)
                    mine = mine.astype(np.float32)
                    full = herring.allreduce(mine.copy())
                    partial = herring.allreduce(mine.copy(), sync=sync, name=name + kind)
                    assert (full.view(np.uint32) == partial.view(np.uint32)).all(), (name, kind)
    """,
        )
    )


def test_a_recorded_list_of_contributors_gives_the_same_bits() -> None:
    # Contributions are functions of rank and number; what the list says is summed once more, in
    # the order of ranks, each rank's own contributions first.
    expect_success(
        run_job(
            ["-n", "5"],
            """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank, size = herring.rank(), herring.size()
        def value(rank, number, elements):
            return np.random.default_rng([rank, number]).standard_normal(elements, np.float32)
        def tree(parts):
            while len(parts) > 1:
                parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i]
                         for i in range(0, len(parts), 2)]
            return parts[0]
        for elements, divisor in [(700, "workers"), (40_000, "contributors")]:
            series = PartialReduction(
                elements, "float32", sync=Quorum(2, staleness=3, divisor=divisor))
            counted = [0] * size
            for step in range(1, 25):
                time.sleep(0.001 * ((7 * step + 3 * rank) % 5))
                work = value(rank, step, elements)
                info = series.allreduce(work)
                parts = []
                for one in info.contributors:
                    own = [value(one.rank, n, elements)
                           for n in range(counted[one.rank] + 1, one.upto + 1)]
                    total = own[0]
                    for part in own[1:]:
                        total = total + part
                    parts.append(total)
                    counted[one.rank] = one.upto
                expected = tree(parts) / np.float32(info.divisor)
                assert info.divisor == (size if divisor == "workers" else len(info.contributors))
                assert (expected.view(np.uint32) == work.view(np.uint32)).all(), step
            list(series.flush(work))
    """,
        )
    )


@pytest.mark.parametrize("elements", [512, 100_000])
def test_a_killed_worker_is_reported_and_no_longer_waited_for(elements: int) -> None:
    job = run_job(
        ["-n", "4", "--nodes", "2", "--servers", "2", "--keep-going"],
        """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
        series = PartialReduction(elements, "int64", sync=Quorum(size), op="sum")
        work = np.empty(elements, np.int64)
        applied = np.zeros(elements, np.int64)
        counted = [0] * size
        def take_note(info):
            applied[:] += work
            for one in info.contributors:
                counted[one.rank] = one.upto
        for step in range(1, 31):
            work[:] = 1000 ** rank * step
            series.contribute(work)
            if rank == 2 and step == 11:
                os.kill(os.getpid(), signal.SIGKILL)
            take_note(series.take(work))
        work[:] = 0
        for info in series.flush(work):
            take_note(info)
        assert [one.rank for one in info.contributors] == [0, 1, 3], info
        ((lost, there, announced),) = info.lost
        assert lost == 2 and there == counted[2] and 10 <= there <= announced <= 11, info.lost
        expected = sum(1000 ** r * sum(range(counted[r] + 1)) for r in range(size))
        expected -= sum(1000 ** r * 31 for r in (0, 1, 3))  # the last contribution is zero
        assert (applied == expected).all(), (applied[:2], expected)
        try:
            herring.barrier()
        except herring.PeerLostError as error:
            assert "rank 2" in str(error), error
            print(f"survivor {rank} flushed; {series.statistics.summary().splitlines()[-1]}")
    """,
        ELEMENTS=str(elements),
    )
    told = re.findall(r"survivor \d flushed; rank 2 is gone: 1[01] contributions", job.stdout)
    assert len(told) == 3, job.stdout[-6000:]


def test_a_slow_worker_is_waited_for_only_when_its_gradient_gets_too_old() -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            """
        from herring.partial import PartialReduction, Quorum
        herring.init()
        rank = herring.rank()
        series = PartialReduction(64, "float32", sync=Quorum(1, staleness=3))
        work = np.zeros(64, np.float32)
        herring.barrier()
        rounds = []
        for step in range(8):
            if rank == 2 and step == 0:
                time.sleep(0.5)
            rounds.append(series.allreduce(work))
        first = next(i for i in rounds if any(one.rank == 2 for one in i.contributors))
        assert first.round == 3, first
        one = next(one for one in first.contributors if one.rank == 2)
        assert one.staleness == 3
        assert series.memory <= 3 + 2
        list(series.flush(work))
        assert "rank 2 was late" in series.statistics.summary(), series.statistics.summary()
    """,
        )
    )


def test_bad_input_is_named() -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            """
        herring.init()
        rank = herring.rank()
        def raises(kind, text, *arguments, **options):
            try:
                herring.allreduce(*arguments, **options)
            except kind as error:
                assert text in str(error), str(error)
            else:
                raise AssertionError(f"no {kind.__name__} for {text}")
        bad, array = herring.InvalidArgumentError, np.zeros(8, np.float32)
        raises(bad, "quorum is 4; it must be from 1 to the number of workers, 3", array,
               sync=herring.Quorum(4))
        raises(bad, "quorum is 0", array, sync=herring.Quorum(0))
        raises(bad, "grace is -0.5 s", array, sync=herring.Quorum(1, grace=-0.5))
        raises(bad, "staleness is -1", array, sync=herring.Quorum(1, staleness=-1))
        raises(bad, "sync is 'most'", array, sync="most")
        raises(bad, "op 'max'", array, "max", sync="solo", name="max")
        raises(bad, "takes no prescale", array, prescale=2.0, sync="solo")
        raises(herring.MismatchError, "rank 1: sync='majority'", array, name="modes",
               sync="majority" if rank == 1 else "solo")
        raises(herring.MismatchError, "rank 2: sync='full'", array, name="full",
               sync="full" if rank == 2 else "solo")
        herring.allreduce(array, sync="majority", name="fine")
        raises(bad, "began with sync='majority'", array, sync="solo", name="fine")
        raises(bad, "the array has 9", np.zeros(9, np.float32), sync="majority", name="fine")
        results = herring.flush(array, name="fine")
        assert len(results) >= 1
        herring.allreduce(array, sync="full", name="ordinary")
    """,
        )
    )


def test_statistics_are_drawn(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    statistics = RoundStatistics()
    for late in range(5):
        contributors = [
            types.SimpleNamespace(rank=rank, staleness=late % 2, waited=rank * 0.01 - 0.02)
            for rank in range(4)
        ]
        statistics.add(
            types.SimpleNamespace(contributors=contributors, active=3, queued=0.001, lost=[])
        )
    assert "rank 0 was late 5 times, by 20.0 ms" in statistics.summary()
    plot = tmp_path / "rounds.png"
    statistics.plot(plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
