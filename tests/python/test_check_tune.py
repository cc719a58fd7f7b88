"""`herring check --tune`: its jobs on the stand-in for CUDA's driver, its verdicts, its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import warm
from gpus import ENVIRONMENT, TORCH_ENVIRONMENT
from herring.command import check, tune
from herring.command.tune import Round, judge
from standin import STANDIN

GPU = {"refused": ""}
REFUSED = {"refused": "GPU 1 (old) has no memory operations on streams, and ..."}


def check_with(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-m", "herring.command.cli", "check", "--no-run", "--tune", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@STANDIN
def test_each_stage_is_measured_on_the_stand_in() -> None:
    pytest.importorskip("torch")
    environment = {**TORCH_ENVIRONMENT, "STANDIN_JITTER": "0", "STANDIN_DEVICES": "1"}
    done = check_with("--json", **environment, HERRING_NODE_THREADS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    found = {one["name"]: one for one in report["findings"]}
    assert found["GPU rounds"]["value"] == "planned rounds of 64 MB, 2 ranks, which share GPU 0"
    assert "2 threads per rank (HERRING_NODE_THREADS)" in found["node_stage host"]["value"]
    # The tensors of this test lie in private memory, which their process cannot export.
    assert found["node_stage ipc"]["verdict"] == "note"
    assert found["node_stage ipc"]["value"] == "not available here: staged was used"
    assert "cannot export its memory" in found["node_stage ipc"]["advice"]
    assert found["node_stage auto"]["value"].startswith("takes staged")
    figures = report["tune"]
    assert (figures["ranks"], figures["threads_per_rank"], figures["auto"]) == (2, 2, "staged")
    host, staged, ipc = figures["stages"]
    for one in (host, staged):
        assert one["available"] and one["bytes_per_second_per_rank"] > 0, one
        rate = 64e6 / one["median_seconds"]
        assert one["bytes_per_second_per_rank"] == pytest.approx(rate)
    assert ipc["used"] == "staged" and ipc["median_seconds"] is None


@STANDIN
def test_a_torch_that_sees_no_gpu_is_told_of_once() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    done = check_with(**ENVIRONMENT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fail node_stage host" in done.stdout
    assert f"torch {torch.__version__} sees no GPU; it must be a build for CUDA" in done.stdout
    assert "Traceback" not in done.stdout and "node_stage staged" not in done.stdout


def test_without_a_driver_nothing_is_started() -> None:
    done = check_with("--json", LD_LIBRARY_PATH="/nowhere")
    report = json.loads(done.stdout)
    found = report["findings"][-1]
    assert found["name"] == "GPU rounds" and found["verdict"] == "fail"
    assert "not measured: no GPU (no CUDA driver: libcuda.so.1" in found["value"]
    assert "needs a GPU" in found["advice"]
    assert done.returncode == 1 and report["tune"] is None


@pytest.mark.parametrize(
    ("devices", "torch", "value", "advice"),
    [
        ([], True, "not measured: the driver reports no GPU", "CUDA_VISIBLE_DEVICES"),
        ([GPU, REFUSED], True, "measured: GPU 1 (old) has no", "cannot use arrays on such"),
        ([GPU], False, "not measured: torch is not installed", "pip install"),
    ],
)
def test_what_is_missing_is_said_before_a_job_starts(
    devices: list[dict[str, bool]],
    torch: bool,
    value: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "there" if torch else None)
    monkeypatch.setattr(tune, "run_job", None)
    [found], figures = tune.tune({"devices": devices}, "")
    assert figures is None and found.verdict == "fail"
    assert value in found.value and advice in found.advice


def test_a_job_that_fails_is_shown_by_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def fail(options, command, seconds, variables):
        jobs.append((list(options), variables["HERRING_NODE_STAGE"]))
        return subprocess.CompletedProcess(command, 7, "\n".join(map(str, range(50))))

    monkeypatch.setattr(tune, "run_job", fail)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "there")
    [found], figures = tune.tune({"devices": [GPU] * 12}, "")
    assert figures is None and (found.value, found.verdict) == ("exit status 7", "fail")
    assert found.advice.splitlines() == [str(i) for i in range(38, 50)]
    assert jobs == [(["-n", "8"], "host")]


def rounds(host: float, staged: float, ipc: float) -> list[Round]:
    """Returns rounds of the three stages, given their milliseconds."""
    times = zip(("host", "staged", "ipc"), (host, staged, ipc))
    return [Round(stage, stage, seconds / 1e3) for stage, seconds in times]


@pytest.mark.parametrize(
    ("measured", "asked", "value", "advice"),
    [
        (rounds(16, 8, 4), "auto", "takes ipc", ""),
        (rounds(4, 8, 4.2), "auto", "takes ipc", ""),
        (rounds(4, 8, 4.4), "auto", "takes ipc; host is 10 % faster than ipc", "host"),
        (
            rounds(16, 8, 4),
            "host",
            "takes ipc; HERRING_NODE_STAGE=host is set here; ipc is 300 % faster than host",
            "ipc",
        ),
        (
            [*rounds(4, 8, 0)[:2], Round("ipc", "staged", 0.008)],
            "ipc",
            "takes staged; HERRING_NODE_STAGE=ipc is set here; host is 100 % faster than staged",
            "host",
        ),
        ([*rounds(4, 2, 0)[:2], Round("ipc", status=1)], "auto", "not known: ipc failed", "staged"),
    ],
)
def test_the_fastest_stage_is_named_where_it_is_worth_it(
    measured: list[Round], asked: str, value: str, advice: str
) -> None:
    *_, found = judge(measured, 2, 2, 1, asked)
    assert found.name == "node_stage auto" and found.value.startswith(value)
    assert found.verdict == ("ok" if not advice else "note" if measured[-1].added else "fail")
    if advice:
        wanted = f"set HERRING_NODE_STAGE={advice} in the environment of all ranks"
        assert found.advice.endswith(wanted)
    else:
        assert found.value == value and found.advice == ""


def test_the_table_has_times_and_rates() -> None:
    failed = [*rounds(16, 8, 0)[:2], Round("ipc", why="a line", status=124)]
    layout, host, staged, ipc, _ = judge(failed, 8, 16, 3, "auto")
    assert layout.value == "planned rounds of 64 MB, 8 ranks on 8 of 16 GPUs"
    assert host.value.split() == [
        *("16.000", "ms", "4.00", "GB/s", "per", "rank"),
        *("3", "threads", "per", "rank", "(HERRING_NODE_THREADS)"),
    ]
    assert staged.value.split() == ["8.000", "ms", "8.00", "GB/s", "per", "rank"]
    assert ipc == check.Line("node_stage ipc", "exit status 124", "fail", "a line")


def test_reasons_are_taken_from_what_ranks_log() -> None:
    said = "\n".join(
        f"[{rank}] [herring rank {rank}] info: 'bench': GPU 0{text}"
        for rank in range(2)
        for text in (
            " reaches its neighbours through host memory: no peer access",
            ": something else",
        )
    )
    assert tune._reasons(said, "staged") == "GPU 0: no peer access"
    assert tune._reasons(said, "host") == ""
    said = "".join(f"'b': processors add for GPU {i % 4}: no NVRTC\n" for i in range(8))
    assert tune._reasons(said, "host").splitlines() == [f"GPU {i}: no NVRTC" for i in range(3)]
