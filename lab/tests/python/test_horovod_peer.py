"""Horovod as a library to compare with: in the benchmark, on emulated hosts, and in the study.

`make test-peers` runs these tests in the environment in which Horovod is built.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from herring.errors import ConfigurationError, InvalidArgumentError
from herring_lab import competitors as peers
from herring_lab.emulate import mpi
from herring_lab.study import training
from herring_lab.study.bench import Network, Point, measure
from herring_lab.study.experiments import Peer, Scale

HERRING = [sys.executable, "-m", "herring.command.cli"]
BENCH = [sys.executable, "-m", "herring.bench", "allreduce", "--peer", "horovod", "--check"]
ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))
needs_root = pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")
needs_horovod = pytest.mark.skipif(bool(peers.missing("horovod")), reason=peers.missing("horovod"))


def test_a_horovod_without_its_part_for_torch_is_missing(tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    package = tmp_path / "horovod"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    assert "make peers" in peers.missing("horovod")
    with pytest.raises(ConfigurationError, match="--peer horovod: Horovod is not installed"):
        peers.start_horovod()
    (package / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").touch()
    assert peers.missing("horovod") == ""


def test_what_carries_its_messages_decides_model_and_launcher() -> None:
    assert Peer("horovod").model == "ring"
    assert Peer("horovod", "mpi").model == "butterfly"
    assert Point(2, 0, 4, "horovod").mpi == ""
    assert Point(2, 0, 4, "horovod", "mpi").mpi == "openmpi"
    assert Point(2, 0, 4, "mpich").mpi == "mpich"


@needs_horovod
@pytest.mark.parametrize("op", ["sum", "average", "max"])
def test_it_reduces_on_one_machine(tmp_path, op) -> None:
    path = tmp_path / "result.json"
    bench = [*BENCH, "--op", op, "--sizes", "4K,1M", "--iterations", "3", "--json", str(path)]
    done = subprocess.run(
        [*HERRING, "run", "-n", "3", "--timeout", "120", "--", *bench],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "wrong elements: 0 OK" in done.stdout
    document = json.loads(path.read_text())
    assert (document["library"], document["workers"]) == ("horovod", 3)
    assert (document["local_size"], document["nodes"]) == (3, 1)
    assert document["details"]["algorithm"] == "gloo"
    assert document["details"]["horovod"] == "0.28.1"


@needs_horovod
def test_types_that_it_does_not_reduce_are_refused() -> None:
    communicator = object.__new__(peers.HorovodCommunicator)
    for dtype in ("bfloat16", "bool", "int8"):
        with pytest.raises(InvalidArgumentError, match=f"does not reduce {dtype}, only float32"):
            communicator.allreduce(4, dtype, "sum")


@needs_root
@needs_horovod
@pytest.mark.parametrize("carrier", ["gloo", "mpi"])
def test_it_reduces_between_emulated_hosts(carrier) -> None:
    if carrier == "mpi":
        try:
            mpi.require("openmpi")
        except ConfigurationError as error:
            pytest.skip(str(error))
    found = measure(Network(), Point(3, 0, 100_000, "horovod", carrier), 3)
    assert found["wrong"] == 0
    assert found["p50_seconds"] > 0


@needs_root
@needs_horovod
def test_two_workers_of_a_host_are_its_local_ranks(tmp_path) -> None:
    path = tmp_path / "result.json"
    lab = ["lab", "run", "--no-check", "--workers", "3", "--per-host", "2", "--timeout", "120"]
    bench = [*BENCH, "--op", "sum", "--sizes", "100K", "--iterations", "3", "--json", str(path)]
    done = subprocess.run([*HERRING, *lab, "--", *bench], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(path.read_text())
    assert (document["workers"], document["local_size"], document["nodes"]) == (3, 2, 2)
    assert document["results"][0]["wrong"] == 0


@needs_root
@needs_horovod
def test_it_averages_the_gradients_of_a_training() -> None:
    found = training.measure_training(Network(), "horovod", 2, 1e6, 0.1, 2)
    assert found["wrong"] == 0  # all gradients are averages over both hosts
    assert all(seconds > 0.1 for seconds in found["step_seconds"])


@needs_horovod
def test_without_the_launcher_of_mpi_it_says_so() -> None:
    done = subprocess.run(
        [*BENCH, "--algorithm", "mpi", "--op", "sum", "--sizes", "4K"],
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            **mpi._KINDS["openmpi"].here,
            "HERRING_SIZE": "2",
            "HERRING_RANK": "0",
        },
    )
    assert done.returncode == 3, done.stderr[-2000:]
    assert "launcher of Open MPI" in done.stderr


def test_the_study_names_it_when_it_is_missing(monkeypatch) -> None:
    pytest.importorskip("torch")

    def measured(*_: object) -> dict[str, object]:
        return {
            "step_seconds": [4.0],
            "last_gradient_seconds": [4.0],
            "processor_seconds": 0.5,
            "retransmits": 0,
        }

    monkeypatch.setattr(training, "measure_training", measured)
    for reason in ("not there", ""):
        monkeypatch.setattr(training, "missing", lambda _peer, said=reason: said)
        table = training.training(Scale([2], 1000, Network(), 1, lambda *_: None))
        named = {row["strategy"] for row in table.rows}
        assert ("Horovod over Gloo" in named) == (not reason)
        assert ("skipped: horovod: not there" in table.notes) == bool(reason)
