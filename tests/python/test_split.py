"""Tests the even split of items over parts."""

from __future__ import annotations

import pytest

from herring.base.split import even_parts


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_differ_by_at_most_one_and_the_larger_come_first(parts: int) -> None:
    for items in (*range(20), 1000003):
        sizes = even_parts(items, parts)
        assert len(sizes) == parts and sum(sizes) == items
        assert sizes[0] - sizes[-1] <= 1
        assert sizes == sorted(sizes, reverse=True)
