"""Commands that run parts of Herring in processes of their own."""

from __future__ import annotations

import sys

__all__ = ["module_command"]


def module_command(module: str, python: str = sys.executable) -> list[str]:
    """A command that runs a module as ``python -m`` does, but for where it looks for modules.

    That looks in the current directory first: a folder that others can write to would have their
    code run with the job's secret, and a user's own ``queue.py`` would take the place of Python's.

    Args:
        module: Its full name.
        python: The interpreter.

    Returns:
        Program and arguments; those of the module follow.
    """
    code = (
        "import sys; sys.path[:] = [path for path in sys.path if path]; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [python, "-c", code]
