"""Writes docs/compatibility.md from what tests install: the Makefile and pyproject.toml.

Usage: python tools/make_compatibility_doc.py [--check]. With --check nothing is written; the status
is 1 if the page is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from written_page import ROOT, write_or_check

PAGE = ROOT / "docs" / "compatibility.md"
COMMAND = "python tools/make_compatibility_doc.py"

# Names as people write them; packages that are no framework of their own are left out.
NAMES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow-cpu": "TensorFlow",
    "keras": "Keras",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "transformers": "Transformers",
    "ray": "Ray Train",
    "distributed": "Dask",
    "pyspark": "Spark",
}
DEPENDENCIES = ("numpy", "psutil", "rich")
# The extra of pyproject.toml that has a framework's lowest version.
EXTRAS = {"tensorflow-cpu": "tensorflow"}

PAGE_TEXT = """\
<!-- Written by {command} from the Makefile and pyproject.toml. Do not edit. -->

# Compatibility

## Systems

Herring runs on little-endian Linux with Python {oldest} or newer. The tests run on Debian 12 for
x86-64 with its Python 3.11. Tests of all parts that need no framework were also tried with 3.13,
and the build with 3.12. With Python 3.14 and g++ 16, the build was tried, and the tests of
collectives, groups and deadlocks. For aarch64, `make check-aarch64` compiles the core, but nobody
has run it there. A build needs g++ 12 or newer and OpenSSL 3. All processes of a job must speak the
same protocol version ([versions](protocol.md#versions)).

## Frameworks

`make test` and `make test-frameworks` install the tested versions. `make test-versions` runs tests
with the lowest allowed versions of PyTorch, NumPy ({numpy}), psutil ({psutil}) and rich ({rich}),
and with the newest. Other versions should work, but were not tested. An empty cell allows any
version.

| framework | tested | lowest allowed | page |
|---|---|---|---|
{rows}

Scripts for Horovod find the API of Horovod {horovod}: [from Horovod](horovod.md).

## Launchers

`make test` and `make test-clusters` start jobs under these launchers
([how](launching.md#tested)):

| launcher | tested |
|---|---|
| torchrun | PyTorch {torch} |
| Slurm | 22.05 |
| OpenSSH (`herring run -H`) | 9.2 |
| Open MPI | 4.1 |
| MPICH | 4.0 |
| Kubernetes | manifests against the published schemas only; JobSet 0.8 or newer |

## GPUs

Arrays on NVIDIA GPUs need a driver for CUDA 11.7 or newer. Herring loads it for the first such
array. One H100 and one H200 were tested ([what was measured](gpu-report.md)). Machines with several
GPUs were not.
"""
GUIDES = {
    "torch": "[PyTorch](pytorch.md), [backend](torch-distributed.md)",
    "jax": "[JAX](jax.md)",
    "tensorflow-cpu": "[TensorFlow](tensorflow.md)",
    "keras": "[Keras](tensorflow.md)",
    "accelerate": "[frameworks](torch-distributed.md#frameworks)",
    "lightning": "[frameworks](torch-distributed.md#frameworks)",
    "transformers": "[frameworks](torch-distributed.md#frameworks)",
    "ray": "[Ray Train](torch-distributed.md#ray-train)",
    "distributed": "[Dask](launching.md#dask)",
    "pyspark": "[Spark](launching.md#spark)",
}


def tested(makefile: str) -> dict[str, str]:
    """The versions that the Makefile installs, by package."""
    versions = {"torch": _only(r"^TORCH_VERSION := (\S+)$", makefile)}
    for line in re.findall(r"^NEEDS_\w+ := (.*)$", makefile, re.MULTILINE):
        for package, version in re.findall(r"([\w-]+)(?:\[\w+\])?==(\S+)", line):
            versions.setdefault(package, version)
    return versions


def lowest(project: str) -> dict[str, str]:
    """The versions that the extras of pyproject.toml ask for, by package."""
    extras = _only(r"^\[project.optional-dependencies\]\n(.*?)\n\n", project)
    return dict(re.findall(r'"([\w-]+)(?:\[\w+\])?[>=]=([\d.]+)"', extras))


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"{COMMAND}: nothing fits {pattern}")
    return found[1]


def page() -> str:
    """The page as it must be."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    horovod = (ROOT / "python" / "herring" / "horovod" / "__init__.py").read_text(encoding="utf-8")
    versions, least = tested(makefile), lowest(project)
    rows = []
    for package, name in NAMES.items():
        # Keras comes with TensorFlow, as the newest that pip finds.
        version = versions.get(package, "the newest")
        need = least.get(EXTRAS.get(package, package), "")
        rows.append(f"| {name} | {version} | {need} | {GUIDES[package]} |")
    return PAGE_TEXT.format(
        command="tools/make_compatibility_doc.py",
        oldest=_only(r'^requires-python = ">=(.*?)"', project),
        rows="\n".join(rows),
        **{name: _only(rf'^dependencies = .*"{name}>=(.*?)"', project) for name in DEPENDENCIES},
        torch=versions["torch"],
        horovod=_only(r'^__version__ = "(.*?)"', horovod),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description="Writes docs/compatibility.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    return write_or_check(PAGE, page(), COMMAND, options.check)


if __name__ == "__main__":
    sys.exit(main())
