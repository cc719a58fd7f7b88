"""The benchmark with arrays on GPUs of the stand-in for CUDA's driver, and refused options."""

from __future__ import annotations

import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm

torch = pytest.importorskip("torch")
pytest.importorskip("herring_lab.competitors")

from gpus import TORCH_ENVIRONMENT  # noqa: E402
from herring.bench import cli  # noqa: E402
from herring.bench.gpus import Gpu, GpuArrays  # noqa: E402
from herring.errors import ConfigurationError  # noqa: E402
from herring_lab import competitors  # noqa: E402
from standin import STANDIN  # noqa: E402


def run_bench(*arguments: str, workers: int = 2, **environment: str) -> str:
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", str(workers)]
    command += ["--nodes", "2", "--", sys.executable, "-m", "herring.bench", *arguments]
    job = warm.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == 0, job.stdout
    return job.stdout


@STANDIN
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", ["allreduce", "planned", "variables"])
def test_results_on_the_stand_in_are_right_when_the_clock_stops(operation: str, dtype: str) -> None:
    # The results are read without any other wait, so a late copy shows as wrong elements.
    environment = {**TORCH_ENVIRONMENT, "STANDIN_JITTER": "500"}
    arguments = ["--device", "cuda", "--dtype", dtype, "--sizes", "4K,300K", "--iterations", "3"]
    said = run_bench(operation, *arguments, "--check", **environment)
    assert "# wrong elements: 0 OK" in said
    assert "# device: stand-in" in said
    assert re.search(rf" 300000 +\d+ +{dtype} ", said), said


@STANDIN
def test_gloo_takes_what_torch_holds_there() -> None:
    arguments = ["--peer", "gloo", "--device", "cuda", "--op", "sum", "--sizes", "4K", "--check"]
    said = run_bench("allreduce", *arguments, **TORCH_ENVIRONMENT)
    assert "# wrong elements: 0 OK" in said
    assert "# device: stand-in" in said


def test_a_run_ends_with_what_it_has_queued() -> None:
    calls = []

    class Recording(Gpu):
        def __init__(self) -> None:
            super().__init__(torch.device("cpu", 0))

        def synchronize(self) -> None:
            calls.append("synchronize")

    arrays = GpuArrays.of(Recording(), [3, 4], "int16")
    prepared = arrays.prepared(lambda: calls.append("run"))
    prepared.run()
    assert calls == ["run", "synchronize"]
    prepared.parts[1][:] = [1, 2, 3, 4]
    prepared.load()
    assert calls == ["run", "synchronize", "synchronize"]
    assert arrays.operands()[1].tolist() == [1, 2, 3, 4]
    arrays.operands()[0][:] = 7
    prepared.store()
    assert prepared.parts[0].tolist() == [7, 7, 7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
@pytest.mark.parametrize("arguments", [["--device", "cuda"], ["--peer", "nccl"]])
def test_without_a_gpu_the_error_says_so(arguments, capsys) -> None:
    assert cli.main(["allreduce", "--sizes", "4K", *arguments]) == 3
    said = capsys.readouterr().err
    assert f"ConfigurationError: {' '.join(arguments)}: torch {torch.__version__} sees no" in said


@pytest.mark.parametrize("operation", ["allreduce", "planned", "variables"])
def test_without_torch_the_error_says_what_to_install(operation, capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main([operation, "--sizes", "4K", "--device", "cuda"]) == 3
    said = capsys.readouterr().err
    assert "ConfigurationError: --device cuda: PyTorch holds the arrays on GPUs" in said
    assert "pip install 'torch" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "nccl", "--device", "cpu"], "NCCL takes arrays on GPUs only"),
        (["--peer", "openmpi", "--device", "cuda"], "openmpi takes arrays in host memory; use her"),
        (["--device", "cuda", "--array", "numpy"], "--array numpy: with --device cuda PyTorch"),
        (["--device", "gpu"], "'gpu' is not allowed for --device"),
    ],
)
def test_options_that_do_not_fit_are_named(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["allreduce", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def require_in_threads(gpus: list[str], folder: Path) -> list[str]:
    """Returns the error that each rank gets, or ""."""

    def require(rank: int) -> str:
        store = torch.distributed.FileStore(str(folder / "store"), len(gpus))
        try:
            competitors.require_own_gpus(store, rank, len(gpus), gpus[rank])
        except ConfigurationError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(gpus)) as pool:
        return list(pool.map(require, range(len(gpus)), timeout=30))


def test_nccl_refuses_ranks_that_share_a_gpu_on_all_ranks(tmp_path) -> None:
    said = require_in_threads(["GPU-a", "GPU-b", "GPU-a"], tmp_path)
    assert len(set(said)) == 1
    assert said[0].startswith("--peer nccl: ranks 0, 2 would share the GPU GPU-a, and NCCL takes")


def test_nccl_takes_ranks_with_gpus_of_their_own(tmp_path) -> None:
    # The last two ranks have a version of torch that does not report the GPU.
    assert require_in_threads(["GPU-a", "host-2 GPU-a", "", ""], tmp_path) == [""] * 4
