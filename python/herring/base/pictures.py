"""Pictures, which need matplotlib: an optional library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from herring.errors import ConfigurationError

#: The endings of files for pictures.
KINDS = (".svg", ".png", ".pdf")


def subplots(rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Returns a figure without a window, and its axes, one below the other.

    Raises:
      ConfigurationError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            f"a picture needs matplotlib ({error}): pip install matplotlib"
        ) from None
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows)


def picture_file(text: str) -> Path:
    """Returns the path of a picture that is to be written.

    Raises:
      ConfigurationError: The ending is not one of `KINDS`, or there is no such folder.
    """
    path = Path(text)
    if path.suffix not in KINDS:
        raise ConfigurationError(f"{text!r} must end in one of {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {str(path.parent)!r} for {text!r}")
    return path
