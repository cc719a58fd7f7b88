"""Wrong options of `herring lab` and `herring study` give early errors that name valid values."""

from __future__ import annotations

import pathlib

import pytest

from herring.command.cli import main
from herring_lab.emulate import cluster

_RUN = ["lab", "run", "--no-check"]
_COMMAND = ["--", "true"]

#: Wrong options of a network, and words that the message must contain.
NETWORKS = [
    (["--rate", "fast"], ["'fast' is not a rate", "200mbit"]),
    (["--rate", ""], ["'' is not a rate"]),
    (["--rate", "0mbit"], ["'0mbit'", "above 0"]),
    (["--rate", "1bit"], ["1 kbit/s to 10 Tbit/s", "1.0 bit/s"]),
    (["--rate", "99999gbit"], ["1 kbit/s to 10 Tbit/s"]),
    (["--queue", "deep"], ["'deep' is not a time", "20ms"]),
    (["--queue", "11s"], ["0 to 10 seconds deep", "11.0"]),
    (["--mtu", "big"], ["--mtu", "'big' is not a size", "write a whole number of bytes"]),
    (["--mtu", "575"], ["576 to 65535 bytes", "575"]),
    (["--mtu", "65522", "--strict"], ["576 to 65521 bytes", "65522"]),
    (["--mtu", "0-1=1500"], ["not to a pair"]),
    (["--mtu", "9=1500"], ["no host 9", "0 to 1"]),
    (["--mtu", "1500", "--mtu", "9000"], ["given twice"]),
    (["--slow", "2:1mbit"], ["'2:1mbit'", "HOST=RATE"]),
    (["--slow", "x=1mbit"], ["HOST=RATE"]),
    (["--slow", "9=1mbit"], ["no host 9", "0 to 1"]),
    (["--slow", "1=1mbit", "--slow", "1=2mbit"], ["twice for host 1"]),
    (["--paths", ""], ["'' is not a rate"]),
    (["--paths", "0x50mbit"], ["'0x50mbit'", "1 to 64"]),
    (["--paths", "65x50mbit"], ["1 to 64"]),
    (["--paths", "4x"], ["'' is not a rate"]),
    (["--paths", "1mbit,"], ["'' is not a rate"]),
    (["--paths", ",".join(["1mbit"] * 65)], ["1 to 64 spines", "65"]),
    (["--paths", "1mbit", "--workers", "1"], ["a single host has none"]),
    (["--paths", "1mbit@far"], ["'far' is not a time"]),
    (["--paths", "1mbit@"], ["'' is not a time"]),
    (["--paths", "1mbit@1ms+"], ["'' is not a time"]),
    (["--paths", "1mbit@1ms/2"], ["'2' is not a share"]),
    (["--paths", "1mbit@99s"], ["--paths: delay", "0 to 10 seconds"]),
    (["--delay=-1ms"], ["'-1ms' is not a time"]),
    (["--delay", "11s"], ["--delay '11s'", "0 to 10 seconds"]),
    (["--delay", "1ms", "--delay", "2ms"], ["given twice"]),
    (["--delay", "a=1ms"], ["one host or two"]),
    (["--delay", "1-0-1=1ms"], ["one host or two"]),
    (["--delay", "1=1ms", "--delay", "1=2ms"], ["twice for 1"]),
    (["--delay", "1-1=1ms"], ["host 1 and itself"]),
    (["--delay", "7=1ms"], ["no host 7", "0 to 1"]),
    (["--jitter", "some"], ["'some' is not a time"]),
    (["--jitter", "11s"], ["--jitter '11s'", "0 to 10 seconds"]),
    (["--loss", "0.1"], ["'0.1' is not a share", "0% to 100%"]),
    (["--loss", "200%"], ["'200%'", "0% to 100%"]),
    (["--loss", "5=1%"], ["no host 5", "0 to 1"]),
    (["--seed", "-1"], ["a seed is 0 to", "-1"]),
    (["--seed", "x"], ["--seed 'x' is not an integer"]),
    (["--no-netem"], ["--no-netem", "--strict"]),
]

#: Wrong options of a job in the laboratory, and words that the message must contain.
JOBS = [
    (["lab", "run"], ["no command", "'--'"]),
    ([*_RUN, "--", "no-such-program-here"], ["no such program"]),
    ([*_RUN, "--workers", "0", *_COMMAND], ["--workers 0", "at least 1"]),
    ([*_RUN, "--workers", "two", *_COMMAND], ["--workers 'two' is not an integer"]),
    ([*_RUN, "--servers", "-1", *_COMMAND], ["--servers -1", "0 or more"]),
    ([*_RUN, "--per-host", "0", *_COMMAND], ["--per-host 0", "at least 1"]),
    ([*_RUN, "--workers", "200", "--servers", "51", *_COMMAND], ["251 hosts", "at most 250"]),
    ([*_RUN, "--timeout", "0", *_COMMAND], ["--timeout '0' is not a time", "above 0"]),
    ([*_RUN, "--timeout", "nan", *_COMMAND], ["--timeout 'nan' is not a time"]),
    ([*_RUN, "--mpi", "lam", *_COMMAND], ["'lam'", "mpich", "openmpi"]),
    (["lab", "check", "--workers", "1"], ["no link", "--workers 2"]),
    (["lab", "check", "--workers", "2", "--loss", "2"], ["'2' is not a share"]),
]

#: Wrong options of a study, and words that the message must contain.
STUDIES = [
    (["all-reduce"], ["'all-reduce' is not one of", "line-rate, allreduce"]),
    (["--hosts", "1,2"], ["'1,2'", "2 to 100"]),
    (["--hosts", "2,101"], ["2 to 100"]),
    (["--hosts", ""], ["''", "2 to 100"]),
    (["--hosts", "2;4"], ["'2;4'", "2,4,8"]),
    (["--rate", "much"], ["'much' is not a rate"]),
    (["partial", "--rate", "1bit"], ["1 kbit/s to 10 Tbit/s"]),
    (["--queue", "0"], ["'0' is not a time"]),
    (["partial", "--queue", "11s"], ["0 to 10 seconds deep"]),
    (["--size", "1"], ["'1'", "at least 4"]),
    (["--size", "1e6,x"], ["'x' is not a size", "write a whole number of bytes"]),
    (["--size", "nan"], ["'nan'", "write a whole number of bytes"]),
    (["--iterations", "0"], ["--iterations 0", "at least 1"]),
    (["over-loss", "--runs", "0"], ["--runs 0", "at least 1"]),
    (["allreduce", "--peers", "gloo,nc"], ["'nc'", "gloo"]),
    (["allreduce", "--peers", "mpich:ring"], ["'mpich:ring'", "mpich has butterfly, doubling"]),
    (["cost", "--nodes", "0"], ["--nodes 0", "at least 1"]),
    (["cost", "--compute", "-1"], ["--compute '-1' is not a time"]),
    (["cost", "--compute", "nan"], ["--compute 'nan' is not a time"]),
    (["cost", "--node-price", "0"], ["--node-price 0", "more than 0"]),
    (["cost", "--server-price", "inf"], ["--server-price inf", "0 or more"]),
    (["--draw", "no-such.json"], ["no-such.json", "No such file"]),
    (["cost", "--draw", "no-such.json"], ["--draw measures nothing", "leave cost out"]),
    (["--quick", "--hosts", "2", "--size", "4"], ["--quick chooses", "--hosts, --size"]),
]

TABLE = [([*_RUN, *options, *_COMMAND], words) for options, words in NETWORKS]
TABLE += JOBS
TABLE += [(["study", *options], words) for options, words in STUDIES]


@pytest.mark.parametrize(("arguments", "words"), TABLE, ids=[" ".join(a)[:60] for a, _ in TABLE])
def test_each_is_named_before_anything_is_made(
    arguments: list[str], words: list[str], capsys, monkeypatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "take_id", lambda: pytest.fail("hosts are being made"))
    try:
        status = main(arguments)
    except SystemExit as error:  # raised by argparse
        status = int(str(error))
    said = capsys.readouterr()
    assert status in (2, 127), said.err
    assert said.out == ""
    for word in words:
        assert word in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["study/file", "study"])
def test_a_folder_that_cannot_be_is_named_before_anything_is_measured(
    what: str, capsys, monkeypatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "study").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["study", "line-rate", "--out", what]) == 2
    assert f"--out '{what}' cannot be used as a folder" in capsys.readouterr().err
