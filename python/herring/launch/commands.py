"""Command lines that run parts of Herring in separate processes."""

from __future__ import annotations

import sys


def module_command(module: str, python: str = sys.executable) -> list[str]:
    """Returns a command that runs a module like ``python -m``, but not from the current directory.

    ``python -m`` searches the current directory first. If other users can write to it, their code
    would run with the job's secret; and a user's own ``queue.py`` would replace Python's.

    Returns:
        Program and arguments, to which the caller appends those of the module.
    """
    code = (
        "import sys; sys.path[:] = [path for path in sys.path if path]; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [python, "-c", code]
