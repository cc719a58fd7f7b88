"""Runs a script so that ``import horovod`` imports Herring: ``python -m herring.horovod x.py``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from herring.horovod.aliases import install

_USAGE = "usage: python -m herring.horovod [-m MODULE | SCRIPT] [ARG ...]"


def main() -> None:
    """Runs the script or module that the command line names."""
    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + module or arguments[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stderr)
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    install()
    # Processes that the script starts import Herring's stand-in for Horovod, too.
    folder = str(Path(__file__).parent / "stand_in")
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if module:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).absolute().parent)
    runpy.run_path(arguments[0], run_name="__main__")


main()
