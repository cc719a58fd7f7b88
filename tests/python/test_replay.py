"""Recorded rounds are repeated bit for bit, whatever the delays; what cannot be is named."""

from __future__ import annotations

import json
import pathlib
import textwrap
from typing import Any

import pytest

from herring.arrays.partial.replay import Replay, read
from herring.errors import InvalidArgumentError
from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(120)

LAYOUTS = {
    "one-node": ["-n", "4"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
}

# Gradients depend on the weights, so that one result taken at another time changes everything. Half
# of the workers look first for results that they have missed, as eager SGD does.
TRAINS = """
from herring.partial import PartialReduction, Quorum
herring.init()
rank, size = herring.rank(), herring.size()

def train(elements, sync, seed, statistics):
    delays = np.random.default_rng([seed, rank])
    series = PartialReduction(elements, "float32", sync=sync, statistics=statistics)
    weights, work = np.zeros(elements, np.float32), np.empty(elements, np.float32)
    digest, lists, step = hashlib.sha256(), [], 0
    def apply(info):
        weights[:] -= np.float32(0.1) * work
        digest.update(work.tobytes())
        lists.append([(one.rank, one.upto, one.staleness, one.active)
                      for one in info.contributors])
    def gradient():
        noise = np.random.default_rng([rank, step]).standard_normal(elements, np.float32)
        work[:] = noise + np.sin(weights + np.float32(rank))
    while series.rounds < 15:
        if delays.random() < 0.4:
            time.sleep(delays.random() * 0.02)
        gradient()
        mine, late = work.copy(), False
        while rank % 2 and series.ready:
            apply(series.take(work))
            late = True
        series.contribute(mine, waits=not late)
        if not late:
            apply(series.take(work))
        step += 1
    gradient()
    for info in series.flush(work):
        apply(info)
    return weights.copy(), digest.hexdigest(), lists, step
"""


def test_a_replay_gives_the_same_bits(tmp_path: pathlib.Path) -> None:
    for name, layout in LAYOUTS.items():
        path = tmp_path / f"{name}.json"
        script = """
        late = 0
        cases = [(300, "solo"), (40_000, "majority"), (40_000, Quorum(1, staleness=2)),
                 (300, Quorum(2, grace=0.001, staleness=3, divisor="contributors"))]
        then = herring.RoundStatistics()
        recorded = [train(elements, sync, 1, then) for elements, sync in cases]
        then.save(os.environ["RECORDING"])
        late = sum(stale > 0 for one in recorded for these in one[2] for _, _, stale, _ in these)
        assert late > 10, late
        for seed in (2, 3):
            now = herring.RoundStatistics()
            sync = herring.Replay(os.environ["RECORDING"])
            for (elements, _), (weights, digest, lists, steps) in zip(cases, recorded):
                found = train(elements, sync, seed, now)
                assert found[3] == steps
                assert found[2] == lists
                assert found[1] == digest
                assert (found[0].view(np.uint32) == weights.view(np.uint32)).all()
            again = os.environ["RECORDING"] + ".again"
            now.save(again)
            if rank == 0:
                assert open(again).read() == open(os.environ["RECORDING"]).read()
        """
        expect_success(run_job(layout, TRAINS + textwrap.dedent(script), RECORDING=str(path)))
        # It is whole, and a later job repeats it as well.
        later = """
        from herring.arrays.partial.replay import read
        weights, digest, lists, steps = train(
            300, herring.Replay(os.environ["RECORDING"]), 4, herring.RoundStatistics())
        recorded = read(os.environ["RECORDING"])["series"][0]["rounds"]
        assert [[[r, upto] for r, upto, _, _ in one] for one in lists] == recorded
        """
        assert len(read(path)["series"]) == 4
        expect_success(
            run_job(
                layout,
                TRAINS + textwrap.dedent(later),
                RECORDING=str(path),
            )
        )


def test_a_worker_that_flushes_first_misses_nothing_in_the_recording(
    tmp_path: pathlib.Path,
) -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            """
        herring.init()
        rank, path = herring.rank(), os.environ["RECORDING"]
        def run(sync, name, pause):
            results = []
            for step in range(4 + rank):
                time.sleep(pause * ((step + rank) % 3))
                array = np.full(50, 1.5 * step + rank, np.float32)
                results.append(herring.allreduce(array, sync=sync, name=name))
            return results + herring.flush(np.zeros(50, np.float32), name=name)
        # Two epochs, which differ in who was late.
        recorded = run("solo", "a", 0.004)
        epoch = len(recorded)
        rank = herring.size() - 1 - rank
        recorded += run("solo", "a", 0.004)
        herring.partial_statistics("a").save(path)
        rank = herring.rank()
        replayed = run(herring.Replay(path), "b", 0.0)
        assert len(replayed) == epoch
        rank = herring.size() - 1 - rank
        replayed += run(herring.Replay(path), "b", 0.0)
        assert len(recorded) == len(replayed)
        assert all((a.view(np.uint32) == b.view(np.uint32)).all()
                   for a, b in zip(recorded, replayed))
    """,
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


def test_what_cannot_be_repeated_is_named(tmp_path: pathlib.Path) -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            """
        from herring.partial import PartialReduction
        herring.init()
        path, bad = os.environ["RECORDING"], herring.InvalidArgumentError
        work = np.ones(8, np.float32)
        first = PartialReduction(8, "float32", sync="majority")
        for _ in range(3):
            first.allreduce(work)
        raises(bad, "series 0 has not ended on rank 0: flush()", first.statistics.save, path)
        list(first.flush(work))
        half = PartialReduction(8, "float32", sync="majority")
        if herring.rank() == 0:
            list(half.flush(work))
        else:
            half.contribute(work, last=True)
        raises(bad, "series 0 has not ended on rank 1: flush()", half.statistics.save, path)
        raises(bad, "rank 0 cannot write 'no-such-folder/x'", first.statistics.save,
               "no-such-folder/x")
        raises(bad, "no-such-file", PartialReduction, 8, "float32",
               sync=herring.Replay("no-such-file"))
        first.statistics.save(path)
        replay = herring.Replay(path)
        raises(bad, "with elements 8; now it is 9", PartialReduction, 9, "float32", sync=replay)
        raises(bad, "with dtype float32; now it is int64", PartialReduction, 8, "int64",
               sync=replay, op="sum")
        raises(bad, "with op average; now it is sum", PartialReduction, 8, "float32",
               sync=replay, op="sum")
        raises(bad, "takes no prescale", herring.allreduce, work, prescale=2.0, sync=replay)

        series = PartialReduction(8, "float32", sync=replay)
        raises(bad, "flushes after 0", series.contribute, work, last=True)
        raises(bad, "contribution 1 with waits=True; now it is False", series.contribute, work,
               waits=False)
        for _ in range(3):
            series.allreduce(work)
        raises(bad, "made 3 contributions and flushed; more cannot", series.allreduce, work)
        list(series.flush(work))
        raises(bad, "has 1 series", PartialReduction, 8, "float32", sync=replay,
               statistics=series.statistics)

        text = open(path).read()
        herring.barrier()
        if herring.rank() == 0:
            open(path, "w").write(text.replace('"workers":2', '"workers":3'))
        raises(bad, "steps of 2 workers, not of 3", PartialReduction, 8, "float32", sync=replay)
    """,
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


def test_a_worker_lost_in_a_replay_fails_the_job(tmp_path: pathlib.Path) -> None:
    job = run_job(
        ["-n", "3", "--nodes", "3", "--servers", "1", "--keep-going"],
        """
        herring.init()
        path, work = os.environ["RECORDING"], np.ones(8, np.float32)
        for step in range(9):
            herring.allreduce(work, sync="majority", name="a")
        statistics = herring.partial_statistics("a")
        herring.flush(work, name="a")
        statistics.save(path)
        try:
            for step in range(9):
                if herring.rank() == 2 and step == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                herring.allreduce(work, sync=herring.Replay(path), name="b")
            herring.flush(work, name="b")
        except herring.PeerLostError as error:
            assert "rank 2" in str(error), error
            print("told", flush=True)
            open(f"{path}.told-{herring.rank()}", "w").close()
        # Who leaves at once may be missed by the other before rank 2 is.
        while not all(os.path.exists(f"{path}.told-{rank}") for rank in (0, 1)):
            time.sleep(0.01)
    """,
        RECORDING=str(tmp_path / "rounds.json"),
    )
    assert job.stdout.count("told") == 2, job.stdout[-4000:]


def _recording() -> dict[str, Any]:
    series = {
        "elements": 8,
        "dtype": "float32",
        "op": "average",
        "q": 1,
        "grace": 0.0,
        "staleness": 4,
        "divisor": "workers",
        "rounds": [[[0, 1]], [[0, 2], [1, 2]]],
        "steps": [[[0, 1], [1, 1]], [[0, 1], [1, 1]]],
    }
    return {"format": "herring recording", "version": 1, "workers": 2, "series": [series]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r, s: None, None),
        (lambda r, s: r.update(version=2), "version 2; this release reads"),
        (lambda r, s: r.update(format="x"), "'x' version 1"),
        (lambda r, s: r.pop("workers"), "workers"),
        (lambda r, s: s.update(grace="1"), "grace '1'"),
        (lambda r, s: s.pop("divisor"), "divisor"),
        (lambda r, s: s["steps"].pop(), "steps of 1 workers, not of 2"),
        (lambda r, s: s["rounds"].insert(0, []), "round 0 has contributors []"),
        (lambda r, s: s["rounds"][0].append([2, 1]), "contributors [0, 2] of 2 workers"),
        (lambda r, s: s["rounds"][1].reverse(), "contributors [1, 0]"),
        (lambda r, s: s["rounds"].append([[0, 2]]), "counts contribution 2 of rank 0"),
        (lambda r, s: s["rounds"].pop(), "counts 1 of 2 steps of rank 0"),
        (lambda r, s: s["rounds"][0][0].append(0), "wrong"),
        (lambda r, s: s["steps"][0][0].__setitem__(0, 1), "made after 1 results"),
        (lambda r, s: s["steps"][0][1].__setitem__(0, 0), "made after 0 results, but at least 1"),
    ],
)
def test_a_damaged_recording_is_named(tmp_path: pathlib.Path, change: Any, text: str) -> None:
    path = tmp_path / "recording.json"
    recording = _recording()
    change(recording, recording["series"][0])
    path.write_text(json.dumps(recording))
    if text is None:
        assert read(path) == recording
        return
    with pytest.raises(InvalidArgumentError) as caught:
        read(path)
    assert str(path) in str(caught.value) and text in str(caught.value), caught.value


def test_a_cut_recording_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(_recording())[:100])
    with pytest.raises(InvalidArgumentError, match="not a readable recording"):
        read(path)
    assert repr(Replay("a.json")) == "Replay(path='a.json')"
