"""Calls a function in a process of the job that `horovod.run` starts, and stores its result.

Usage: python -m herring.horovod.runner.call FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from herring.base import pickling
from herring.horovod.runner.common.util.env import get_env_rank_and_size


def main() -> None:
    """Reads the function and its arguments from the folder, and writes the result to the folder."""
    folder = Path(sys.argv[1])
    func, args, kwargs = pickling.loads((folder / "call").read_bytes())
    result = func(*args, **kwargs)
    rank, _ = get_env_rank_and_size()
    (folder / str(rank)).write_bytes(pickling.dumps(result))


if __name__ == "__main__":
    main()
