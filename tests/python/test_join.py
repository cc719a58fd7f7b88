"""join() for ranks that have fewer all-reduces than others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from herring.arrays import names
from jobs import LAYOUTS, expect_success, program, run_job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_reduces_go_on_without_those_who_joined(layout):
    expect_success(run_job(LAYOUTS[layout], program("joins")))


@pytest.mark.parametrize("joined", ["", "yes"])
@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_a_death_ends_a_join(layout: str, joined: str, tmp_path: Path) -> None:
    ranks = 3 if layout == "one-node" else 4
    done = run_job(
        [*LAYOUTS[layout], "--keep-going"],
        program("join_death"),
        VICTIM=str(ranks - 1),
        JOINED=joined,
        FOLDER=str(tmp_path),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
    )
    assert done.stdout.count("has learned of it") == ranks - 1, done.stdout[-4000:]


class Join:
    ended = False

    def done(self) -> bool:
        return self.ended

    def wait(self) -> None:
        assert self.ended


def refuse() -> Join:
    raise RuntimeError("refused")


def test_ranks_have_joined_until_their_join_has_a_result():
    join, among = Join(), "ranks of this test"
    assert names.next_name("x", among) == "x.0"
    assert names.submit_join(partial(lambda: join), among) is join
    assert names.has_joined(among) and not names.has_joined("other ranks")
    with pytest.raises(RuntimeError, match="refused"):
        names.submit_join(partial(refuse), among)
    assert names.has_joined(among)
    join.ended = True
    assert not names.has_joined(among)
    assert names.next_name("x", among) == "x#1.0"
    names.forget_names_among(among)


@pytest.mark.parametrize("layout", ["colocated-servers", "uneven-nodes"])
def test_a_join_that_is_interrupted_or_fails(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("join_interrupted")))


LATE = """
herring.init()
r = herring.rank()
if r == 0:
    raises(herring.HerringError, "", herring.receive, np.zeros(1), 1)
else:
    raises(herring.TimeoutError, "for rank 0", herring.join, timeout=1)
    # Who ends without a goodbye is lost for those who are not told yet.
    open(os.path.join(os.environ["TOLD"], str(r)), "w").close()
    while len(os.listdir(os.environ["TOLD"])) < 3:
        time.sleep(0.01)
print("told", r, flush=True)
os._exit(0)
"""


def test_a_deadline_ends_a_join_and_names_who_is_missing(tmp_path: Path) -> None:
    done = run_job(LAYOUTS["dedicated-servers"], LATE, TOLD=str(tmp_path))
    assert all(f"told {rank}" in done.stdout for rank in (1, 2, 3)), done.stdout
