"""Measures averaging on a GPU: `make bench-gpu`, or python benchmarks/gpu.py [--workers 2].

All workers share one GPU and its link. There is a table for each method of adding a node's
gradients (the setting node_stage). Ratios compare with measurements of the same run: plain copies
in pinned memory, the same step without averaging, and torch's Gloo on the same tensors. Use
--device cpu only to check that the program runs.
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
    "copies": "GB/s of copies of 64 MB in pinned memory: out, in, and both at once",
    "memory": "GB/s of the GPU's memory: bytes read and written by a copy inside it",
    "round": "seconds for a round of 100 MB, and with wire_dtype=bfloat16; GB/s in both directions "
    "of all workers together",
    "round/copies": "rate of the round divided by the rate of copies both at once; target 0.8",
    "round/memory": "seconds of the round divided by the seconds that memory needs; target 1.3",
    "wait": "microseconds in wait() after averaging ended: first and second call; target 10",
    "step": "seconds for a step of the model without averaging, with it, and with "
    "wire_dtype=bfloat16",
    "slowed": "slowdown of the step by averaging, with wire_dtype=bfloat16, and by copies alone; "
    "target: at most 5 % more than copies",
    "pointer": "microseconds in which a call learns from the driver where its array lies, and of "
    "an all-reduce of 4 kB; their ratio, which is the most that a pointer cache could save",
    "gloo": "seconds for an all-reduce of 100 MB: Gloo, Herring, Herring/Gloo; target 0.3",
}
STAGES = ("host", "staged", "ipc")
_BYTES = 100 << 20


def timed(calls: dict[str, Callable[[], object]], device: str, times: int = 7) -> dict[str, float]:
    """Returns the median seconds of each call and the work it queues.

    Calls are made in turns, because the machine may be faster for some seconds than for others. All
    workers start each call together.
    """
    import torch

    import herring

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times + 5):
        for name, call in calls.items():
            wait()
            herring.barrier()
            start = time.monotonic()
            call()
            wait()
            found[name].append(time.monotonic() - start)
    return {name: statistics.median(each[5:]) for name, each in found.items()}


def model(device: str):
    """Creates a model of the size of BERT base without its embeddings: 12 layers of width 768."""
    import torch

    small = device == "cpu"
    layer = torch.nn.TransformerEncoderLayer(
        64 if small else 768, 4 if small else 12, 128 if small else 3072, batch_first=True
    )
    return torch.nn.TransformerEncoder(layer, 2 if small else 12).to(device)


class Round:
    """A planned round of 50 gradients, which are parts of one tensor."""

    PARTS = 50

    def __init__(self, device: str, nbytes: int, wire_dtype: str | None = None) -> None:
        import torch

        import herring
        from herring.torch.devices import exported, gpu_of

        gpu = gpu_of(torch.empty(0, device=device))
        self.plan = herring.PlannedReduction(
            [(nbytes // 4 // self.PARTS, "float32")] * self.PARTS, device=gpu, wire_dtype=wire_dtype
        )
        [(_, size)] = self.plan.arenas
        self.arena = torch.ones(size // 4, device=device)
        if gpu is not None:
            self.plan.place([exported(self.arena)])

    def run(self) -> None:
        """Runs one round."""
        self.plan.begin()
        for part in range(self.PARTS):
            self.plan.ready(part)
        self.plan.wait()

    def waits(self, device: str, pause: float) -> list[float]:
        """Returns the median seconds of two calls of wait() after averaging has ended."""
        import torch

        found = []
        for _ in range(20):
            self.plan.begin()
            self.plan.ready_all(range(self.PARTS))
            time.sleep(pause)
            if device == "cuda":
                torch.cuda.synchronize()
            self.arena.add_(1)  # As in training, work is queued just before wait().
            times = [time.perf_counter()]
            for _ in range(2):
                self.plan.wait()
                times.append(time.perf_counter())
            found.append((times[1] - times[0], times[2] - times[1]))
        return [statistics.median(each) for each in zip(*found)]


class Step:
    """A training step of the model."""

    def __init__(self, device: str, averaged: bool, wire_dtype: str | None = None) -> None:
        import torch

        import herring.torch

        torch.manual_seed(1)
        module = model(device)
        width = 64 if device == "cpu" else 768
        self.inputs = torch.randn(8, 16 if device == "cpu" else 128, width, device=device)
        wrapper = herring.torch.DistributedDataParallel
        self.forward = wrapper(module, wire_dtype=wire_dtype) if averaged else module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def run(self) -> None:
        """Makes one step."""
        self.optimizer.zero_grad()
        self.forward(self.inputs).square().mean().backward()
        self.optimizer.step()


def pointer_query(device: int, address: int, nbytes: int) -> float:
    """Returns the seconds in which a call finds out that its array lies on this GPU."""
    from herring import _core

    found = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            _core.check_memory_of(device, address, nbytes)
        found.append((time.perf_counter() - start) / 500)
    return statistics.median(found)


def measure_gloo(device: str, nbytes: int) -> float:
    """Returns the seconds of torch's own all-reduce with Gloo."""
    import torch
    import torch.distributed as dist

    import herring

    where = herring.broadcast_object(f"/tmp/herring-gpu-bench-{os.getpid()}")
    store = dist.FileStore(where, herring.size())
    dist.init_process_group("gloo", store=store, rank=herring.rank(), world_size=herring.size())
    tensor = torch.ones(nbytes // 4, device=device)
    seconds = timed({"gloo": lambda: dist.all_reduce(tensor)}, device)["gloo"]
    dist.destroy_process_group()
    return seconds


def work(device: str) -> dict[str, list[float]]:
    """Runs all measurements as one worker, and returns the figures by name."""
    import torch

    import herring
    import herring.torch

    herring.init()
    stage = os.environ.get("HERRING_NODE_STAGE", "host")
    nbytes = _BYTES if device == "cuda" else 1 << 20
    size = herring.size()
    found: dict[str, list[float]] = {}
    copies = memory = 0.0
    if device == "cuda":
        from herring import _core

        rates = herring.broadcast_object(
            _core.measure_copies(torch.cuda.current_device(), 64 << 20)
            if herring.rank() == 0
            else None
        )
        copies = rates["both"]
        ones, other = (torch.ones(256 << 18, device=device) for _ in range(2))
        # All workers copy at the same time, and share the memory's bandwidth.
        memory = size * 2 * ones.nbytes / timed({"copy": lambda: other.copy_(ones)}, device)["copy"]
        memory = herring.broadcast_object(memory)
        del ones, other
        if stage == STAGES[0]:
            found["copies"] = [rates[way] / 1e9 for way in ("out", "in", "both")]
            found["memory"] = [memory / 1e9]
    rounds = {"32": Round(device, nbytes), "16": Round(device, nbytes, "bfloat16")}
    seconds = timed({name: one.run for name, one in rounds.items()}, device)
    really = rounds["32"].plan.node_stage
    if really != stage and device == "cuda":
        print(f"{stage} is not available here: {really} was measured", flush=True)
    found["round"] = [seconds["32"], seconds["16"], 2 * nbytes * size / seconds["32"] / 1e9]
    if copies:
        found["round/copies"] = [found["round"][2] * 1e9 / copies]
        if really == "ipc":
            # Every rank reads its slice of all arenas, and writes its slice to all arenas.
            found["round/memory"] = [seconds["32"] / (2 * size * nbytes / memory)]
    waits = rounds["32"].waits(device, 5 * seconds["32"] + 0.01)
    found["wait"] = [1e6 * each for each in waits]
    for one in rounds.values():
        one.plan.close()
    steps = {
        "plain": Step(device, False),
        "32": Step(device, True),
        "16": Step(device, True, "bfloat16"),
    }
    seconds = timed({name: one.run for name, one in steps.items()}, device, 20)
    found["step"] = [seconds[name] for name in steps]
    if copies:
        bytes_each_way = 4 * sum(p.numel() for p in model(device).parameters())
        copying = 2 * bytes_each_way * size / copies
        slower = [seconds[name] / seconds["plain"] - 1 for name in ("32", "16")]
        found["slowed"] = [*slower, copying / seconds["plain"]]
    for name in ("32", "16"):
        steps[name].forward.close()
    if stage == STAGES[0] and device == "cuda":
        small = torch.ones(1024, device=device)
        query = pointer_query(small.device.index, small.data_ptr(), small.nbytes)
        call = timed({"small": lambda: herring.torch.allreduce(small)}, device, 50)["small"]
        found["pointer"] = [1e6 * query, 1e6 * call, query / call]
    if stage == STAGES[0]:
        tensor = torch.ones(nbytes // 4, device=device)
        mine = timed({"mine": lambda: herring.torch.allreduce(tensor)}, device)["mine"]
        gloo = measure_gloo(device, nbytes)
        found["gloo"] = [gloo, mine, mine / gloo]
    herring.shutdown()
    return found


def run(stage: str, options: argparse.Namespace) -> dict[str, list[float]] | None:
    """Starts the workers; returns the figures of rank 0, or None if the job failed."""
    command = [sys.executable, "-m", "herring.command.cli", "run", "-n", str(options.workers)]
    job = subprocess.run(
        [*command, "--timeout", "400", "--", sys.executable, __file__, "--device", options.device],
        env={**os.environ, "HERRING_NODE_STAGE": stage},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = job.stdout.splitlines()
    found = [json.loads(line.split("FIGURES ", 1)[1]) for line in lines if "FIGURES " in line]
    for line in lines:
        if "FIGURES " not in line:
            print(line)
    return found[0] if found and job.returncode == 0 else None


def main() -> int:
    """Starts the workers and prints the tables, or runs as one worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=2, help="number of workers on the GPU")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=STAGES, help="node stages to measure"
    )
    options = parser.parse_args()
    if "HERRING_RANK" in os.environ:
        found = work(options.device)
        if os.environ["HERRING_RANK"] == "0":
            print("FIGURES", json.dumps(found), flush=True)
        return 0
    if options.device == "cuda":
        subprocess.run(["nvidia-smi", "-L"], check=False)
    print(time.strftime("%Y-%m-%d"), f"{options.workers} workers")
    for stage in options.stages if options.device == "cuda" else STAGES[:1]:
        found = run(stage, options)
        if found is None:
            return 1
        print(f"node_stage {stage}")
        for name, values in found.items():
            shown = ", ".join(f"{value:.4g}" for value in values)
            print(f"  {name:14}{shown:34}{FIGURES[name]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
