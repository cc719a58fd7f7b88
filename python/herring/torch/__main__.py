"""Runs a script in a process group of Herring: ``python -m herring.torch script.py``.

The script, or the framework that it uses, finds the process group initialized. If the script calls
`init_process_group` itself, it gets that group, whatever backend it asks for.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist

import herring
import herring.torch
from herring.torch.backend.answer import answer_init_process_group

_USAGE = """usage: python -m herring.torch [-m MODULE | SCRIPT] [ARG ...]

Initializes a process group of Herring, then runs the script or module, which uses that group.
Start it in the same way as the script, once for each rank:

  torchrun --nproc-per-node 4 -m herring.torch train.py --epochs 3
  herring run -n 4 -- python -m herring.torch train.py --epochs 3"""


def main() -> None:
    """Runs the script or module that the command line names."""
    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + module or arguments[0] in ("-h", "--help"):
        wanted = arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, file=sys.stdout if wanted else sys.stderr)
        sys.exit(0 if wanted else 2)
    _begin()
    answer_init_process_group()
    ended: SystemExit | None = None
    try:
        if module:
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path[0] = str(Path(arguments[0]).absolute().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        ended = error
    if (ended is None or not ended.code) and dist.is_initialized():
        dist.destroy_process_group()  # waits for ranks that still need this process
    if ended is not None:
        raise ended


def _begin() -> None:
    if all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        dist.init_process_group("herring")
        return
    # The process was not started by torchrun, but frameworks still look for torchrun's variables.
    dist.init_process_group("herring", init_method="herring://")
    store = dist.group.WORLD._store
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    place = {
        "MASTER_ADDR": store.host,
        "MASTER_PORT": store.port,
        "RANK": herring.rank(),
        "WORLD_SIZE": herring.size(),
        "LOCAL_RANK": herring.local_rank(),
        "LOCAL_WORLD_SIZE": herring.local_size(),
        "GROUP_RANK": herring.node_rank(),
        "NODE_RANK": herring.node_rank(),
    }
    for name, value in place.items():
        os.environ.setdefault(name, str(value))


main()
