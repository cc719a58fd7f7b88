"""Jobs with a late, stopped or hung rank: Herring names it and says why, and accuses nobody else.

These are a few of the cases in tests/observe, all of which `make observe-cases` runs.
"""

from __future__ import annotations

import functools
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "observe"))

from observed import Case, Result, observe
from observed_cases import CASES, QUICK

CHOSEN = [case for case in CASES if case.name in QUICK]


@functools.cache
def begun() -> dict[str, Future[Result]]:
    """Runs all cases at once, as their ranks wait most of the time; returns results by name."""
    with ThreadPoolExecutor(len(CHOSEN)) as pool:
        return {case.name: pool.submit(observe, case) for case in CHOSEN}


def test_the_quick_cases_exist() -> None:
    assert len(CASES) >= 40 and len({case.name for case in CASES}) == len(CASES)
    assert len(CHOSEN) == len(QUICK)


@pytest.mark.measures
@pytest.mark.parametrize("case", CHOSEN, ids=[case.name.replace(" ", "-") for case in CHOSEN])
def test_the_right_process_is_named(case: Case) -> None:
    run = begun().pop(case.name, None)
    result = observe(case) if run is None else run.result()  # alone if the test is repeated
    if run is not None and result.verdict == "wrong":
        result = observe(case)  # the others, which ran at the same time, may have disturbed it
    # How long that takes depends on what else the machine does.
    assert result.verdict in ("right", "slow"), f"{result.said}\n{result.output}"
