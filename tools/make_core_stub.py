"""Writes python/herring/_core.pyi, the types of the compiled core, by nanobind's stubgen.

Usage: python tools/make_core_stub.py [--check]. The package must be built and importable. With
--check, nothing is written, and the exit status is 1 if the file is not current.
tools/core_stub.pat has what stubgen cannot know.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from nanobind.stubgen import ReplacePattern, StubGen, load_pattern_file
from written_page import ROOT, write_or_check

STUB = ROOT / "python" / "herring" / "_core.pyi"
PATTERNS = ROOT / "tools" / "core_stub.pat"
COMMAND = "python tools/make_core_stub.py"
HEAD = f"# Written by '{COMMAND}' from the bindings. Do not edit.\n"


def generated(module: ModuleType, patterns: list[ReplacePattern]) -> str:
    """Returns what stubgen writes of a module."""
    generator = StubGen(module, patterns=patterns)
    generator.put(module)
    return str(generator.get())


def stub() -> str:
    """Returns the text of the file.

    Raises:
      ValueError: a pattern describes nothing of the core.
    """
    from herring import _core

    patterns = load_pattern_file(str(PATTERNS))
    text = generated(_core, patterns)
    unused = [pattern.query.pattern for pattern in patterns if not pattern.matches]
    if unused:
        raise ValueError(f"{PATTERNS.name} describes what the core does not have: {unused}")
    # A stub of one file can describe a module in it only as a class.
    functions = re.findall(r"^def .*$", generated(_core.jax, []), flags=re.MULTILINE)
    inside = "\n\n".join(f"    @staticmethod\n    {function}" for function in functions)
    inside = inside.replace("herring._core.", "").replace("CapsuleType", "object")
    text = text.replace("from herring._core import jax as jax\n", f"class jax:\n{inside}\n", 1)
    return HEAD + re.sub(r"\n{3,}", "\n\n", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the file, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes python/herring/_core.pyi.")
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    options = parser.parse_args(arguments)
    return write_or_check(STUB, stub(), COMMAND, options.check)


if __name__ == "__main__":
    sys.exit(main())
