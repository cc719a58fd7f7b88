"""Tests that measure are repeated beside other load, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiet


class Measured:
    """A test that fails so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.folders: list[Path] = []

    def __call__(self, tmp_path: Path) -> None:
        assert not list(tmp_path.iterdir())
        (tmp_path / "file").touch()
        self.folders.append(tmp_path)
        assert len(self.folders) > self.failures, "too slow"


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What other processes take in each attempt."""
    shares: list[float] = []
    monkeypatch.setattr(quiet.Load, "others", lambda self: shares.pop(0))
    return shares


def test_it_passes_when_the_load_has_gone(others: list[float], tmp_path: Path) -> None:
    others += [0.9, 0.3]
    test = Measured(2)
    quiet.call_in_quiet(test, {"tmp_path": tmp_path})
    assert len(test.folders) == 3 and not others


def test_a_failure_without_load_counts(others: list[float], tmp_path: Path) -> None:
    others += [0.9, 0.02]
    test = Measured(9)
    with pytest.raises(AssertionError, match="too slow"):
        quiet.call_in_quiet(test, {"tmp_path": tmp_path})
    assert len(test.folders) == 2


def test_it_is_skipped_if_the_load_stays(others: list[float], tmp_path: Path) -> None:
    others += [0.9, 0.9, 0.75]
    with pytest.raises(pytest.skip.Exception, match=r"had 75 % of this machine: .*too slow"):
        quiet.call_in_quiet(Measured(9), {"tmp_path": tmp_path})


@pytest.mark.measures
def test_the_mark_does_that(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert tmp_path.name == "attempt-0" and request.node.name in str(request.node.nodeid)


def test_the_share_of_others_is_a_share() -> None:
    load = quiet.Load()
    sum(range(3_000_000))  # This process's own work does not count.
    assert 0 <= load.others() <= 1.5
