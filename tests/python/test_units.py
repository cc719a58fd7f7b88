"""Times, sizes, rates, counts and lists: as people write them, and as Herring writes them."""

from __future__ import annotations

import re

import pytest

from herring.base import units
from herring.base.units import parse_rate, parse_seconds, parse_share, parse_size
from herring.command import cli
from herring.errors import ConfigurationError


def test_units_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("herring._core")
    for text in ("5m", "450ms", "50us", "1h", "0.5", " 3 s "):
        assert parse_seconds(text) == core.parse_seconds(text)
        parsed = cli.make_parser().parse_args(["run", "--timeout", text, "--", "true"])
        assert parsed.timeout == parse_seconds(text)
    for text in ("64K", "1.5GB", "4MiB", "8192"):
        assert parse_size(text) == core.parse_bytes(text)
        monkeypatch.setenv("HERRING_SERVER_MEMORY", text)
    assert parse_rate("10Gbps") == parse_rate("10gbit") == parse_rate("10G") == 1e10
    assert parse_share("0.5%") == 0.005


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_seconds, ["", "soon", "-1s", "nan", "0", "5 min", "1d"]),
        (parse_size, ["", "0", "1.5", "-1", "1P", "many"]),
        (parse_rate, ["", "0G", "10", "10GB/s", "10GB", "-1G"]),
        (parse_share, ["0.5", "101%", "-1%", "%"]),
    ],
)
def test_what_is_none_is_named_with_what_is_allowed(parse, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(
            ConfigurationError, match=rf"^{re.escape(repr(text))} is not a .*: write"
        ):
            parse(text)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.show_duration, 0, "0 s"),
        (units.show_duration, 3e-6, "3 us"),
        (units.show_duration, 9.996e-4, "1.0 ms"),
        (units.show_duration, 0.0123, "12 ms"),
        (units.show_duration, -0.5, "-500 ms"),
        (units.show_duration, 0.9996, "1.0 s"),
        (units.show_duration, 1.26, "1.3 s"),
        (units.show_duration, 12.4, "12 s"),
        (units.show_duration, 750, "12 min"),
        (units.show_time, -1, "0 s"),
        (units.show_time, 41.2, "41 s"),
        (units.show_time, 99.6, "2 min"),
        (units.show_time, 8100, "2 h 15 min"),
        (units.in_seconds, 59.7502, "60 s"),
        (units.in_seconds, 4.00346, "4 s"),
        (units.in_seconds, 0.25, "0.25 s"),
        (units.in_seconds, 0.02, "20 ms"),
        (units.in_seconds, 1800.0, "1800 s"),
        (units.show_size, 0, "0 B"),
        (units.show_size, 999.6, "1 kB"),
        (units.show_size, 16384, "16.4 kB"),
        (units.show_size, 1e8, "100 MB"),
        (units.show_rate, 2e8, "200 Mbit/s"),
        (units.listed, [], ""),
        (units.listed, ["a", "b"], "a and b"),
        (units.listed, list("abcd"), "a, b, c and d"),
        (units.listed, list("abcdef"), "a, b, c and 3 more"),
        (units.ranks_text, [3], "rank 3"),
        (units.ranks_text, [9, 0, 1, 3, 4, 5], "ranks 0-1, 3-5, 9"),
        (units.ranks_text, range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_what_is_shown(show, value, text: str) -> None:
    assert show(value) == text


def test_nouns_follow_their_number() -> None:
    found = [units.counted(number, "server") for number in (0, 1, 2)]
    assert found == ["0 servers", "1 server", "2 servers"]
    assert units.ranks_text([1], "server") == "server 1"
