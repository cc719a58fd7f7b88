"""benchmarks/counts.py: how it classifies samples, what it reads about threads, its table."""

from __future__ import annotations

import os
import pathlib
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
counts = pytest.importorskip("counts")


@pytest.mark.parametrize(
    ("file", "symbol", "place"),
    [
        ("[kernel.kallsyms]", "_copy_to_iter", "copying between kernel and user"),
        ("[kernel.kallsyms]", "finish_task_switch.isra.0", "waking and switching threads"),
        ("[kernel.kallsyms]", "tcp_sendmsg_locked", "the rest of the kernel: TCP/IP"),
        ("/x/_core.cpython-311.so", "herring::reduce::avx2::run<float>", "summing"),
        ("/x/_core.cpython-311.so", "[unknown]", "the rest of Herring"),
        ("/usr/lib/libc.so.6", "__memmove_avx_unaligned_erms", "copying in user space"),
        ("/usr/bin/python3", "_PyEval_EvalFrameDefault", "Python, torch and other libraries"),
    ],
)
def test_samples_have_a_place(file: str, symbol: str, place: str) -> None:
    assert counts._place(file, symbol) == place


def test_sleeps_of_all_threads_count() -> None:
    before = counts._threads([os.getpid()])
    wait = threading.Event()
    for _ in range(5):
        wait.wait(0.002)
    after = counts._threads([os.getpid()])
    assert after[0] >= before[0] + 5
    assert after[2] >= before[2]


def test_counts_are_per_round_and_process() -> None:
    batches = [
        counts.Counts(
            dict.fromkeys([*counts._CALLS, counts._ALL], 80.0 * n), 160 * n, 8, 0.4, 8e6, 16e6
        )
        for n in (1, 2, 30)
    ]
    found = counts._medians(batches, 1 / (10 * 8))
    assert found["calls"]["send"] == pytest.approx(2)
    assert found["sleeps"] == pytest.approx(4)
    assert found["processor_ms"] == pytest.approx(5)
    assert found["received_mb"] == pytest.approx(0.2)
    places = dict.fromkeys([place for place, _, _ in counts._PLACES], 0.5)
    document = {"peer": "gloo", "workers": 8, "bytes": 100_000_000, "seconds": 0.4}
    text = counts.table({**document, "worker": {**found, "places": places}})
    assert "gloo, 8 workers, 100 MB, 400 ms while counting" in text
    assert "| send | 2 |" in text
    assert "| - summing | 0.5 |" in text


@pytest.mark.parametrize("option", [["--workers", "1"], ["--rounds", "0"], ["--batches", "0"]])
def test_too_little_is_refused(option: list[str], capsys) -> None:
    with pytest.raises(SystemExit):
        counts.main(option)
    assert "at least" in capsys.readouterr().err
