"""A worker is killed while its data-loading processes live on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm

torch = pytest.importorskip("torch")

SURVIVORS = (0, 2)
LAYOUTS = {"one-node": ["-n", "3"], "colocated-servers": ["-n", "3", "--nodes", "3"]}


class Endless(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 20 and os.environ["HERRING_RANK"] == "1":
            time.sleep(3600)  # The loader is busy when its parent dies.
        return torch.full((16,), float(index % 7))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def worker(directory: Path) -> None:
    """Trains until rank 1 kills itself; the other ranks record when they learn of it."""
    import herring.torch as herring

    torch.set_num_threads(1)
    herring.init()
    rank = herring.rank()
    model = herring.DistributedDataParallel(torch.nn.Linear(16, 4))
    loader = iter(torch.utils.data.DataLoader(Endless(), batch_size=4, num_workers=2))
    try:
        for step in range(1 << 20):
            model(next(loader) if step < 5 else torch.ones(4, 16)).sum().backward()
            if step == 20 and rank == 1:
                pids = [process.pid for process in loader._workers]
                note = {"loaders": pids}
                (directory / "killed.tmp").write_text(json.dumps(note))
                (directory / "killed.tmp").rename(directory / "killed")
                os.kill(os.getpid(), signal.SIGKILL)
    except herring.PeerLostError as error:
        killed = json.loads((directory / "killed").read_text())
        note = {
            "message": str(error),
            "loaders": [alive(pid) for pid in killed["loaders"]],
        }
        (directory / str(rank)).write_text(json.dumps(note))
        while not all((directory / str(other)).exists() for other in SURVIVORS):
            time.sleep(0.01)  # The others might hear first that this rank has left.
        herring.shutdown()  # Like any program at its end: rank 0 still has to tell others.
        os._exit(0)  # Does not wait for sleeping loaders.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_survivors_hear_of_it_at_once(layout: str, tmp_path: Path) -> None:
    job = warm.run(
        [
            *(sys.executable, "-m", "herring.command.cli", "run", *LAYOUTS[layout]),
            *("--keep-going", "--timeout", "500", "--grace", "1", "--"),
            *(sys.executable, __file__, str(tmp_path)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Only news of the death ends a wait.
        env={**os.environ, "HERRING_TIMEOUT": "600", "HERRING_HEARTBEAT_TIMEOUT": "600"},
        timeout=600,
        check=False,
    )
    for rank in SURVIVORS:
        note = tmp_path / str(rank)
        assert note.exists(), f"rank {rank} has not raised PeerLostError\n{job.stdout[-4000:]}"
        heard = json.loads(note.read_text())
        assert heard["loaders"] == [True, True], "the loaders should have outlived their parent"
        # If rank 1 hosted a server, the loss of that server may be noticed first.
        assert re.search(r"rank 1\b|node 1\b", heard["message"]), heard["message"]


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
