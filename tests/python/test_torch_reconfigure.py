"""Process groups whose members change: torch's reconfigure, with processes that come and die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import pytest

import warm

pytest.importorskip("torch")

import torch.distributed as dist

from jobs import program

SECONDS = 500

needs_front = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"),
    reason="torch has init_process_group(enable_reconfigure=True) from 2.14 on",
)


class Members:
    """The processes of a test, which run the same program and share a folder."""

    def __init__(
        self, folder: Path, name: str, places: int, nodes: bool, **environment: str
    ) -> None:
        self._folder = folder
        self._nodes = nodes  # whether each process pretends to be on a host of its own
        self._program = program(name)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
        kept |= {"OMP_NUM_THREADS": "1", "FOLDER": str(folder), "PLACES": str(places)}
        self._environment = kept | {"SECONDS_TO_LIVE": str(SECONDS)} | environment
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.outputs: dict[int, Path] = {}
        for place in range(places):
            self.begin(place)

    def begin(self, place: int, **environment: str) -> None:
        """Starts a process with a place of its own."""
        self.outputs[place] = self._folder / f"output-{place}"
        with self.outputs[place].open("a") as output:
            self.running[place] = warm.Popen(
                [sys.executable, *self._program],
                env=self._environment
                | {"PLACE": str(place)}
                | ({"HERRING_HOST_ID": f"host-{place}"} if self._nodes else {})
                | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def require_well(self) -> None:
        """Waits for all processes, and requires that all end well; the first failure ends it."""
        with ThreadPoolExecutor(len(self.running)) as pool:
            ends = [pool.submit(self._end_of, place) for place in self.running]
            try:
                for end in as_completed(ends):
                    end.result()
            finally:
                self.kill()

    def _end_of(self, place: int) -> None:
        status = self.running[place].wait(SECONDS + 10)
        well = status == 0 and "well" in self.outputs[place].read_text()
        assert well, self.said()

    def said(self) -> str:
        """Returns what the processes have printed."""
        return "\n".join(
            f"process {place}: {path.read_text()[-3000:]}" for place, path in self.outputs.items()
        )

    def kill(self) -> None:
        """Kills the processes that are still running."""
        for one in self.running.values():
            one.kill()


@contextmanager
def members(
    folder: Path, name: str, places: int, nodes: bool = False, **environment: str
) -> Iterator[Members]:
    found = Members(folder, name, places, nodes, **environment)
    try:
        yield found
    finally:
        found.kill()
        for one in found.running.values():
            one.wait()


def test_members_change_and_wrong_calls_do_no_harm(tmp_path: Path) -> None:
    with members(tmp_path, "reconfigure_calls", 3) as processes:
        processes.require_well()


@pytest.mark.parametrize("layout", ["one-node", "three-nodes-and-a-secret"])
def test_members_die_and_others_take_their_places(tmp_path: Path, layout: str) -> None:
    """A death in a collective, and one after handles were exchanged, of rank 0 and of others."""
    several = layout != "one-node"
    secret = {"HERRING_SECRET": "5e" * 32} if several else {}
    with members(tmp_path, "reconfigure_deaths", 3, several, **secret) as processes:
        for turn, victim in enumerate((2, 0, 1, 0)):
            assert processes.running[victim].wait(SECONDS) == -signal.SIGKILL, processes.said()
            processes.begin(victim, TURN=str(turn + 1))
        processes.require_well()


@needs_front
def test_stock_ddp_goes_on_when_a_member_dies(tmp_path: Path) -> None:
    with members(tmp_path, "reconfigure_ddp", 3) as processes:
        assert processes.running[0].wait(SECONDS) == -signal.SIGKILL, processes.said()
        del processes.running[0]
        processes.require_well()


# PyTorch's file of tests lists its own backends only.
OWN_TESTS = """
from test_c10d_fault_tolerance import _make_fault_tolerance_test_class

HerringFaultToleranceTest = _make_fault_tolerance_test_class("herring", "cpu")
HerringFaultToleranceTest.__module__ = __name__  # where its processes look for it
"""


@needs_front
def test_torchs_own_tests_of_reconfigure(tmp_path: Path) -> None:
    """They are in PyTorch's repository, not in its package."""
    folder = Path(os.environ.get("PYTORCH_SOURCES", "/nowhere"), "test/distributed")
    if not (folder / "test_c10d_fault_tolerance.py").exists():
        pytest.skip("needs PYTORCH_SOURCES, a copy of PyTorch's repository at torch's version")
    pytest.importorskip("expecttest", reason="PyTorch's tests need expecttest")
    (tmp_path / "own_tests.py").write_text(OWN_TESTS)
    paths = [str(tmp_path), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = warm.run(
        [sys.executable, "-m", "unittest", "-v", "own_tests.HerringFaultToleranceTest"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]


def test_torchft_trains_on_when_a_replica_dies_and_comes_again(tmp_path: Path) -> None:
    pytest.importorskip("torchft", reason="torchft is not installed here")
    with members(tmp_path, "reconfigure_torchft", 3) as processes:
        assert processes.running[2].wait(SECONDS) == -signal.SIGKILL, processes.said()
        processes.begin(2, AGAIN="yes")
        processes.require_well()
