"""Compiles kernels with CUDA's own compiler for each GPU generation, without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".venv/nvrtc/nvidia/cuda_nvrtc/lib"

pytestmark = [
    pytest.mark.skipif(
        not FOLDER.exists(), reason="CUDA's compiler is not there: make test installs it"
    ),
]

# The script runs in its own process, as other tests may have loaded a stand-in for the compiler.
SCRIPT = """
import sys
from herring import _core

_core.add_compiler_folder(sys.argv[1])
for spec in sys.argv[2:]:
    major, minor, *names = spec.split(",")
    if names == ["words"]:
        code = _core.compile_words(int(major), int(minor))
        assert b"herring_wait" in code and b"herring_write" in code
    else:
        code = _core.compile_kernel(int(major), int(minor), *names)
        assert b"herring_combine" in code
    kind = "machine code" if code.startswith(b"\\x7fELF") else "text"
    fused = kind == "text" and (b"fma." in code or b"mad.f" in code)
    print(spec, kind, len(code), "fused" if fused else "not fused")
"""

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")
OPERATORS = ("sum", "min", "max", "product")


def compiled(*specs: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(FOLDER), *specs],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("kernel", ["float32,average", "words"])
def test_every_generation_gets_machine_code_and_newer_ones_text(kernel: str) -> None:
    known = ("7,0", "7,5", "8,0", "8,6", "8,9", "9,0", "10,0", "12,0", "12,1")
    said = compiled(*(f"{one},{kernel}" for one in known), f"99,0,{kernel}")
    assert len(said) == len(known) + 1
    assert all(" machine code " in line for line in said[:-1]), said
    assert re.fullmatch(f"99,0,{kernel} text [0-9]+ not fused", said[-1])


def test_all_dtypes_and_operators_compile_without_fused_operations() -> None:
    specs = [f"99,0,{dtype},{op}" for dtype in DTYPES for op in OPERATORS]
    specs += ["99,0,bool,sum", "99,0,bool,product"]
    specs += [f"99,0,float32,sum,{narrow}" for narrow in ("float16", "bfloat16")]
    specs += [f"99,0,{narrow},sum,float32" for narrow in ("float16", "bfloat16")]
    said = compiled(*specs)
    assert len(said) == len(specs)
    assert all(line.endswith(" not fused") and " text " in line for line in said), said
