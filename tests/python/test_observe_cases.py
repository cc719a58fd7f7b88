"""Jobs with a late, stopped or hung rank: Herring names it and says why, and accuses nobody else.

These are a few of the cases in tests/observe, all of which `make observe-cases` runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "observe"))

from observed import observe
from observed_cases import CASES, QUICK

CHOSEN = [case for case in CASES if case.name in QUICK]


def test_the_quick_cases_exist() -> None:
    assert len(CASES) >= 40 and len({case.name for case in CASES}) == len(CASES)
    assert len(CHOSEN) == len(QUICK)


@pytest.mark.measures
@pytest.mark.parametrize("case", CHOSEN, ids=[case.name.replace(" ", "-") for case in CHOSEN])
def test_the_right_process_is_named(case) -> None:
    result = observe(case)
    # How long that takes depends on what else the machine does.
    assert result.verdict in ("right", "slow"), f"{result.said}\n{result.output}"
