"""Measures averaging on a GPU: `make bench-gpu`, or python benchmarks/gpu.py [--workers 2].

All workers share one GPU, whose link they share too. Per figure a line of JSON, and a table at the
end. Ratios are to what was measured in the same run: plain copies in pinned memory, the same step
without averaging, torch's Gloo on the same tensors. With --device cpu it only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

FIGURES = {
    "copies": "GB/s out, in, and both at once, of 64 MB in pinned memory",
    "round": "seconds for a round of 100 MB, and GB/s out and back together of all workers",
    "round/copies": "rate of the round as a share of that of copies both at once; wanted 0.8",
    "wait": "microseconds in wait() when all is averaged; wanted 10",
    "step": "seconds for a step of the model without averaging, and with it",
    "slowed": "by how much averaging slows the step, and by how much copies alone would; wanted "
    "5 % beyond those",
    "gloo": "seconds for an all-reduce of 100 MB by torch's Gloo, and by Herring; wanted 0.3",
}
_BYTES = 100 << 20


def timed(call: Callable[[], object], device: str, times: int = 7) -> float:
    """Seconds of the median call, with all that it has queued."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = []
    for _ in range(times + 2):
        wait()
        start = time.monotonic()
        call()
        wait()
        found.append(time.monotonic() - start)
    return statistics.median(found[2:])


def model(device: str):
    """Of the size of BERT base, but for its embeddings: 12 layers of 768."""
    import torch

    small = device == "cpu"
    layer = torch.nn.TransformerEncoderLayer(
        64 if small else 768, 4 if small else 12, 128 if small else 3072, batch_first=True
    )
    return torch.nn.TransformerEncoder(layer, 2 if small else 12).to(device)


def measure_round(device: str, nbytes: int) -> tuple[float, float]:
    """Seconds of a planned round, and in wait() once all is averaged."""
    import torch

    import herring
    from herring.torch.devices import exported, gpu_of

    parts = 50
    arena = torch.ones(nbytes // 4, device=device)
    gpu = gpu_of(arena)
    plan = herring.PlannedReduction([(nbytes // 4 // parts, "float32")] * parts, device=gpu)
    [(_, size)] = plan.arenas
    arena = torch.ones(size // 4, device=device)
    if gpu is not None:
        plan.place([exported(arena)])

    def step() -> None:
        plan.begin()
        for part in range(parts):
            plan.ready(part)
        plan.wait()

    seconds = timed(step, device)
    plan.begin()
    plan.ready_all(range(parts))
    time.sleep(5 * seconds + 0.1)
    start = time.monotonic()
    plan.wait()
    waited = time.monotonic() - start
    plan.close()
    return seconds, waited


def measure_step(device: str, averaged: bool) -> float:
    """Seconds of a training step."""
    import torch

    import herring.torch

    torch.manual_seed(1)
    module = model(device)
    width = 64 if device == "cpu" else 768
    inputs = torch.randn(8, 16 if device == "cpu" else 128, width, device=device)
    forward = herring.torch.DistributedDataParallel(module) if averaged else module
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        forward(inputs).square().mean().backward()
        optimizer.step()

    seconds = timed(step, device)
    if averaged:
        forward.close()
    return seconds


def measure_gloo(device: str, nbytes: int) -> float:
    """Seconds of torch's own all-reduce over Gloo."""
    import torch
    import torch.distributed as dist

    import herring

    where = herring.broadcast_object(f"/tmp/herring-gpu-bench-{os.getpid()}")
    store = dist.FileStore(where, herring.size())
    dist.init_process_group("gloo", store=store, rank=herring.rank(), world_size=herring.size())
    tensor = torch.ones(nbytes // 4, device=device)
    seconds = timed(lambda: dist.all_reduce(tensor), device)
    dist.destroy_process_group()
    return seconds


def work(device: str) -> dict[str, list[float]]:
    """What one worker measures."""
    import torch

    import herring
    import herring.torch

    herring.init()
    nbytes = _BYTES if device == "cuda" else 1 << 20
    found: dict[str, list[float]] = {}
    if device == "cuda":
        from herring import _core

        if herring.rank() == 0:
            rates = _core.measure_copies(torch.cuda.current_device(), 64 << 20)
            found["copies"] = [rates[way] / 1e9 for way in ("out", "in", "both")]
        herring.barrier()
    seconds, waited = measure_round(device, nbytes)
    found["round"] = [seconds, 2 * nbytes * herring.size() / seconds / 1e9]
    if "copies" in found:
        found["round/copies"] = [found["round"][1] / found["copies"][2]]
    found["wait"] = [1e6 * waited]
    plain, averaged = measure_step(device, False), measure_step(device, True)
    found["step"] = [plain, averaged]
    if "copies" in found:
        bytes_each_way = 4 * sum(p.numel() for p in model(device).parameters())
        copies = 2 * bytes_each_way * herring.size() / (found["copies"][2] * 1e9)
        found["slowed"] = [averaged / plain - 1, copies / plain]
    tensor = torch.ones(nbytes // 4, device=device)
    mine = timed(lambda: herring.torch.allreduce(tensor), device)
    gloo = measure_gloo(device, nbytes)
    found["gloo"] = [gloo, mine, mine / gloo]
    herring.shutdown()
    return found


def main() -> int:
    """Starts the workers, or is one; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=2, help="that share the GPU")
    options = parser.parse_args()
    if "HERRING_RANK" in os.environ:
        found = work(options.device)
        if os.environ["HERRING_RANK"] == "0":
            print("FIGURES", json.dumps(found), flush=True)
        return 0
    command = [sys.executable, "-m", "herring.launch.cli", "run", "-n", str(options.workers)]
    job = subprocess.run(
        [*command, "--timeout", "400", "--", sys.executable, __file__, "--device", options.device],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = [line for line in job.stdout.splitlines() if "FIGURES " in line]
    if job.returncode or not lines:
        print(job.stdout)
        return job.returncode or 1
    if options.device == "cuda":
        subprocess.run(["nvidia-smi", "-L"], check=False)
    print(time.strftime("%Y-%m-%d"), f"{options.workers} workers")
    for name, values in json.loads(lines[0].split("FIGURES ", 1)[1]).items():
        shown = ", ".join(f"{value:.4g}" for value in values)
        print(f"{name:14}{shown:34}{FIGURES[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
