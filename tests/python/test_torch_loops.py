"""Training loops in real jobs end with equal results under Herring and under torch's own DDP."""

from __future__ import annotations

import functools
import json

import pytest

pytest.importorskip("torch")

from batches import herring_run, outcomes
from loops import LOOPS

LAYOUTS = {
    "two-workers": ["-n", "2"],
    "two-nodes": ["-n", "4", "--nodes", "2", "--servers", "1"],
}
# Loops that start slowly run on one node only. So does the loop in bfloat16: Gloo sums in bfloat16
# and Herring in float32, which gives equal results for two workers only.
ONE_NODE_ONLY = {"checkpointed_compiled", "compiled_wrapper", "half_parameters"}


def loops_of(layout: str) -> list[str]:
    return [name for name in LOOPS if layout == "two-workers" or name not in ONE_NODE_ONLY]


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    return outcomes(
        [*herring_run(*LAYOUTS[layout]), "-m", "loops"],
        loops_of(layout),
        name_in=lambda line: json.loads(line)["loop"],
        GLOO_SOCKET_IFNAME="lo",
        # Small segments, so that small models also have several fusion buffers and segments.
        HERRING_SEGMENT_BYTES="1024",
        HERRING_TIMEOUT="600",
    )


@pytest.mark.parametrize(
    ("layout", "name"), [(layout, name) for layout in LAYOUTS for name in loops_of(layout)]
)
def test_loop(layout: str, name: str) -> None:
    if text := run_all(layout)[name]:
        pytest.fail(text, pytrace=False)
