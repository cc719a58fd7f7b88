"""Runs loops one after the other; rank 0 reports which gave equal results, and how equal."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
import torch.distributed

import herring.torch as herring
from herring_lab.competitors import end_process

from . import LOOPS
from .libraries import Herring, Library, Nothing, Torch
from .routines import fork_loaders

# Tolerances for loops marked as inexact: a few roundings of float32 (6e-8), enlarged by some steps.
# A real mistake is about as large as the effect of not averaging, which is checked as well.
RELATIVE = 1e-4
ABSOLUTE = 1e-5


def run(name: str, library: Library) -> dict[str, torch.Tensor]:
    torch.manual_seed(17 + library.rank)
    result = LOOPS[name](library)
    library.close()
    return result


def largest_difference(result: dict, expected: dict) -> float:
    """Returns the largest difference over all entries, relative to each entry's largest element."""
    largest = 0.0
    for key, tensor in expected.items():
        if tensor.numel():
            scale = max(tensor.double().abs().max().item(), 1e-3)
            difference = (result[key].double() - tensor.double()).abs().max().item()
            largest = max(largest, difference / scale)
    return largest


def digests(result: dict[str, torch.Tensor]) -> dict[str, str]:
    return {
        key: hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
        for key, tensor in result.items()
    }


def compare(name: str, result: dict, expected: dict) -> None:
    exact = not hasattr(LOOPS[name], "inexact")
    assert result.keys() == expected.keys()
    for key, tensor in expected.items():
        assert tensor.isfinite().all(), f"{name}: {key} of the reference is not finite"
        torch.testing.assert_close(
            result[key],
            tensor,
            rtol=0 if exact else RELATIVE,
            atol=0 if exact else ABSOLUTE,
            msg=lambda message, key=key: f"{name}: {key} on rank {herring.rank()}: {message}",
        )
    # Tensors that torch keeps bit-identical on all ranks must be bit-identical with Herring, too.
    mine, theirs = (herring.allgather_object(digests(found)) for found in (result, expected))
    for key in expected:
        if len({digest.get(key) for digest in theirs}) == 1:
            assert len({digest[key] for digest in mine}) == 1, f"{name}: ranks differ in {key}"


def check(name: str) -> dict[str, object]:
    started = time.perf_counter()
    expected = run(name, Torch(plain=hasattr(LOOPS[name], "inexact")))
    apart = largest_difference(run(name, Nothing()), expected)
    assert apart > 100 * RELATIVE, f"{name} would not show an error: {apart:.1e} without averaging"
    result = run(name, Herring())
    difference = largest_difference(result, expected)
    compare(name, result, expected)
    seconds = time.perf_counter() - started
    return {"loop": name, "difference": difference, "apart": apart, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loops", nargs="+", choices=list(LOOPS))
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    herring.init()
    if "loaded" in arguments.loops:
        fork_loaders(herring.rank(), herring.size())
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{arguments.report.with_suffix('.gloo')}",
        rank=herring.rank(),
        world_size=herring.size(),
    )
    for name in arguments.loops:
        line = check(name)
        herring.barrier()
        if herring.rank() == 0:
            with arguments.report.open("a") as report:
                report.write(json.dumps(line) + "\n")
    torch.distributed.destroy_process_group()
    herring.shutdown()
    end_process(0)


main()
