"""A worker dies in the first start under torchrun, and the second start averages to its end.

The argument is a folder. Before worker 1 dies, it leaves a process that tries to take its place in
the first start when the second one trains. The second start trains until that process has ended.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
late = len(sys.argv) > 2
while late and not (folder / "second").exists():
    time.sleep(0.05)
try:
    dist.init_process_group("herring")
finally:
    if late:
        (folder / "late").touch()
rank, size = dist.get_rank(), dist.get_world_size()
step, more = 0, True
while more:
    gradient = torch.full((50_000,), float(1000 * start + 10 * step + rank))
    dist.all_reduce(gradient, dist.ReduceOp.AVG)
    expected = 1000 * start + 10 * step + (size - 1) / 2
    assert (gradient == expected).all(), (start, step, gradient[:3])
    if start == 0 and rank == 1 and step == 5:
        with (folder / "said").open("w") as said:
            words = [sys.executable, __file__, str(folder), "late"]
            env = {**os.environ, "HERRING_CONNECT_TIMEOUT": "5"}
            subprocess.Popen(words, env=env, start_new_session=True, stdout=said, stderr=said)
        os.kill(os.getpid(), signal.SIGKILL)
    if start == 1:
        (folder / "second").touch()
        time.sleep(0.02)  # leaves the processors to others
    more_here = torch.tensor([float(not (folder / "late").exists())])
    dist.all_reduce(more_here, dist.ReduceOp.MAX)
    more = bool(more_here)
    step += 1
print(f"rank {rank} of {size} is done in start {start}", flush=True)
dist.destroy_process_group()
