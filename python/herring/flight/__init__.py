"""Reads flight records: what every process of a job was doing when the job failed.

`record` reads the file, `operations` finds the entries of all processes that belong to one
operation, and `analysis` says who waited for whom. `report` makes text for people, `torch_format`
makes files for PyTorch's analyzer, and `trace` makes a Chrome trace.
"""

from __future__ import annotations

__all__: list[str] = []
