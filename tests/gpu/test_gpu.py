"""Tests on a real GPU (`make test-gpu`); without a GPU, all of them are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))  # after this folder

from gpus import ENVIRONMENT  # noqa: E402
from jobs import expect_success, program, run_job  # noqa: E402
from status_server import short_folder  # noqa: E402

pytestmark = pytest.mark.timeout(200)

LAYOUTS = {
    "alone": ["-n", "1"],
    "one-node": ["-n", "2"],
    "two-nodes": ["-n", "4", "--nodes", "2"],
    "dedicated-server": ["-n", "3", "--nodes", "3", "--servers", "1"],
}

HERE = Path(__file__).parent / "programs"
# JAX otherwise reserves most of the memory of the GPU that the workers share.
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "1"}
NEEDED = {"cupy": ["cupy"], "jax": ["jax", "jax_cuda13_plugin"]}
PROGRAMS = {
    "collectives": program("gpu_collectives"),
    "gathers": program("gpu_gathers"),
    "rounds": program("gpu_rounds"),
    "training": program("torch_training", folder=HERE),
    "horovod": program("torch_horovod", folder=HERE),
    "copied": program("torch_copied", folder=HERE),
    "captured": program("torch_captured", folder=HERE),
    "sharded": program("torch_sharded", folder=HERE),
    "cupy": program("cupy_arrays", folder=HERE),
    "jax": program("jax_programs", folder=HERE),
    "butterfly-bits": program("butterfly_bits"),
    "many-butterflies": program("butterfly_many"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_right(name: str, layout: str) -> None:
    if missing := next((one for one in NEEDED.get(name, []) if not find_spec(one)), None):
        pytest.skip(f"{missing} is not installed")
    expect_success(run_job(LAYOUTS[layout], PROGRAMS[name], timeout=150, **SHARED, **ENVIRONMENT))


def test_servers_die_while_gpus_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = ["-n", "4", "--nodes", "2", "--servers", "2"]
    with short_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        environment = {"HERRING_FAILOVER": "true", **ENVIRONMENT}
        job = run_job(layout, program("gpu_failover", "3"), timeout=150, **environment)
    assert expect_success(job).count("is done after") == 4


def test_elastic_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = program("elastic_digits", str(tmp_path), "6", "0 20 SIGKILL", "2 60 SIGTERM")
    options = ["--elastic", "--notice", "SIGTERM", "-n", "3"]
    with short_folder() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        job = run_job(options, script, timeout=150, DEVICE="cuda", **ENVIRONMENT)
    assert "is done: True" in expect_success(job)


@pytest.mark.parametrize("layout", ["one-node", "two-nodes", "four"])
@pytest.mark.parametrize("stage", ["ipc", "staged", "host"])
@pytest.mark.parametrize("name", ["gpu_stages", "gpu_casts"])
def test_gpus_add_with_the_bits_of_processors(name: str, stage: str, layout: str) -> None:
    options = {**LAYOUTS, "four": ["-n", "4"]}[layout]
    nodes = "2" if layout == "two-nodes" else "1"
    environment = {"WANTED": stage, "HERRING_NODE_STAGE": stage, "GPUS": "1", "NODES": nodes}
    expect_success(run_job(options, program(name), timeout=150, **environment, **ENVIRONMENT))


@pytest.mark.parametrize("stage", ["ipc", "staged", "host"])
@pytest.mark.parametrize("how", ["dies", "aborts"])
def test_nobody_takes_what_a_failed_round_left_for_averages(how: str, stage: str) -> None:
    environment = {"HOW": how, "WANTED": stage, "HERRING_NODE_STAGE": stage, "GPUS": "1"}
    options = ["-n", "3", "--keep-going"]
    job = run_job(options, program("gpu_poisoned"), timeout=150, **environment, **ENVIRONMENT)
    assert job.stdout.count("poisoned\n") == 3 - (how == "dies"), job.stdout


def test_check_measures_each_stage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "herring.command.cli", "check", "--no-run", "--tune", "--json"],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=190,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)["tune"]
    assert figures["ranks"] == min(max(torch.cuda.device_count(), 2), 8)
    host, staged, ipc = figures["stages"]
    assert [one["stage"] for one in (host, staged, ipc)] == ["host", "staged", "ipc"]
    assert host["available"], figures
    for one in (host, staged, ipc):
        assert (one["median_seconds"] or 0) > 0 if one["available"] else one["why"], one
    assert figures["auto"] == ipc["used"]


def run_bench(workers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", str(workers)]
    command += ["--timeout", "100", "--", sys.executable, "-m", "herring.bench", *arguments]
    return subprocess.run(
        [*command, "--check", "--sizes", "4K,5M", "--warmup", "1", "--iterations", "3"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", ["allreduce", "planned", "variables"])
def test_the_benchmark_is_right(operation: str, dtype: str) -> None:
    said = expect_success(run_bench(2, operation, "--device", "cuda", "--dtype", dtype))
    assert "# wrong elements: 0 OK" in said
    assert "# device: cuda:0 (" in said


def test_the_benchmark_measures_gloo_on_a_gpu() -> None:
    if find_spec("herring_lab.competitors") is None:
        pytest.skip("herring-dl-lab is not installed")
    arguments = ["--peer", "gloo", "--device", "cuda", "--op", "sum"]
    said = expect_success(run_bench(2, "allreduce", *arguments))
    assert "# wrong elements: 0 OK" in said


def test_the_benchmark_refuses_nccl_with_more_ranks_than_gpus() -> None:
    if find_spec("herring_lab.competitors") is None:
        pytest.skip("herring-dl-lab is not installed")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this build of torch has no NCCL")
    gpus = torch.cuda.device_count()
    said = expect_success(run_bench(gpus, "allreduce", "--peer", "nccl", "--op", "sum"))
    assert "# wrong elements: 0 OK" in said
    job = run_bench(gpus + 1, "allreduce", "--peer", "nccl", "--op", "sum")
    assert job.returncode == 3, job.stdout
    assert f"ConfigurationError: --peer nccl: ranks 0, {gpus} would share the GPU" in job.stdout


@pytest.mark.parametrize("average", ["herring", "ddp", "none"])
@pytest.mark.parametrize("model", ["resnet50", "bert"])
def test_the_example_trains(model: str, average: str) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "synthetic.py"
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--timeout", "100"]
    command += ["--", sys.executable, str(example), "--tiny", "--device", "cuda", "--steps", "5"]
    job = subprocess.run(
        [*command, "--model", model, "--average", average, "--dtype", "bfloat16"],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    said = expect_success(job)
    assert ("checked: all workers hold the same parameters" in said) == (average != "none")
