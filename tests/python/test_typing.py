"""What type checkers and `dir()` see of the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import herring

PACKAGE = Path(herring.__file__).parent

PROGRAM = """
import datetime
import herring
import numpy as np

herring.init(timeout=60)
rank: int = herring.rank()
array = herring.allreduce(np.zeros(3), "sum", name="x", timeout=3.0)
handle: herring.Handle = herring.allreduce_async(array)
handle.wait()
with_planned: type[herring.PlannedReduction] = herring.PlannedReduction
partial = herring.allreduce(array, sync=herring.Quorum(2))
herring.rank(3)  # call-arg
herring.allreduce(array, op=1)  # arg-type
herring.allreduce(array, op="avg")  # arg-type
array.nothing()  # attr-defined
herring.grouped_allreduce([array], "sum")[0].nothing()  # attr-defined
herring.broadcast(array).nothing()  # attr-defined
herring.allreduce(array, opp="sum")  # call-arg
handle.wait(timeout=[3])  # arg-type
handle.wait(timeout="3s")
herring.barrier(timeout=datetime.timedelta(seconds=3))
size: str = herring.size()  # assignment
herring.nothing()  # attr-defined
"""

# What type checkers must find nothing in.
SCRIPT = """
from __future__ import annotations

import herring
import herring.horovod.torch as hvd
import herring.torch as herring_torch
import numpy as np
import torch
import torch.nn as nn
from numpy.typing import NDArray


def arrays() -> NDArray[np.float32]:
    herring.init(timeout=60)
    array = np.full(1000, herring.rank(), dtype=np.float32)
    herring.allreduce(array)
    total: NDArray[np.float32] = herring.allreduce(array, "sum", name="total")
    handle: herring.Handle = herring.allreduce_async(array, "sum")
    handle.wait(timeout=3.0)
    group: herring.Group = herring.new_group([0, 1])
    herring.broadcast(array, root=0, group=group)
    try:
        herring.barrier()
    except herring.PeerLostError as error:
        print(str(error))
    herring.shutdown()
    return total


def train(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    herring_torch.init()
    wrapped = herring_torch.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    loss = torch.zeros(())
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(inputs), labels)
        loss.backward()
        optimizer.step()
    mean: torch.Tensor = herring_torch.allreduce(loss.detach(), timeout="5s")
    herring_torch.allreduce(mean, torch.distributed.ReduceOp.SUM)
    herring_torch.reduce(mean, torch.distributed.ReduceOp(torch.distributed.ReduceOp.MAX))
    return float(mean)


def train_as_with_horovod(model: nn.Module, inputs: torch.Tensor) -> None:
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()),
        named_parameters=model.named_parameters(),
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loss: torch.Tensor = model(inputs).mean()
    loss.backward()
    optimizer.step()
    handle: int = hvd.allreduce_async(loss.detach(), name="loss")
    average: torch.Tensor = hvd.synchronize(handle)
    members: hvd.ProcessSet = hvd.add_process_set([0])
    place: int | None = members.rank()
    print(average.item(), place, hvd.local_rank())
"""


def test_every_name_is_listed_and_there():
    assert set(herring.__all__) <= set(dir(herring))
    for name in herring.__all__:
        assert getattr(herring, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = herring.nothing
    assert (PACKAGE / "py.typed").is_file()


EXAMPLES = sorted(Path(__file__).resolve().parents[2].glob("examples/*.py"))
# A user's program is checked as with --strict, and the package as its own settings say.
OF_PROGRAMS = f"""
[[tool.mypy.overrides]]
module = {["program", "script", *(example.stem for example in EXAMPLES)]}
disallow_untyped_calls = true
warn_return_any = true
"""


def test_the_types_of_the_core_are_those_of_the_bindings() -> None:
    pytest.importorskip("nanobind")
    tool = Path(__file__).resolve().parents[2] / "tools" / "make_core_stub.py"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


# One run of mypy checks everything, because most of its time goes into the types of torch.
@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns what mypy says of programs, a script and herring.horovod, line by line."""
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "script.py").write_text(SCRIPT)
    for example in EXAMPLES:
        (folder / example.name).write_text(example.read_text())
    configuration = Path(__file__).resolve().parents[2] / "pyproject.toml"
    (folder / "mypy.toml").write_text(configuration.read_text() + OF_PROGRAMS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--cache-dir", "cache", "--config-file", "mypy.toml"),
            *("-m", "program", "-m", "script", "-p", "herring.horovod"),
            *(word for example in EXAMPLES for word in ("-m", example.stem)),
        ],
        # With what the package says as what a user has installed says it.
        env={**os.environ, "MYPYPATH": os.pathsep.join([str(PACKAGE.parent), str(folder)])},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert re.search(r"^Found \d+ errors? .*\(checked \d+ source files\)", done.stdout, re.M), (
        done.stdout + done.stderr
    )
    return done.stdout.splitlines()


def test_mypy_finds_wrong_arguments(checked: list[str]) -> None:
    said = "\n".join(checked)
    found = re.findall(r"^program\.py:(\d+): error: .*\[([\w-]+)\]$", said, re.M)
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = [(str(n), line.split("  # ")[1]) for n, line in lines if "  # " in line]
    assert found == expected, said


def test_a_users_script_is_right_for_mypy(checked: list[str]) -> None:
    assert not [line for line in checked if line.startswith("script.py:")], checked


def test_the_examples_are_right_for_mypy(checked: list[str]) -> None:
    names = tuple(f"{example.name}:" for example in EXAMPLES)
    assert not [line for line in checked if line.startswith(names)], checked


def test_mypy_finds_nothing_in_the_horovod_module_or_what_it_uses(checked: list[str]) -> None:
    programs = ["program", "script", *(example.stem for example in EXAMPLES)]
    others = (*(f"{name}.py:" for name in programs), "Found ")
    assert not [line for line in checked if not line.startswith(others)], checked
