# The compiled module is private to this package. The package declares the types of its results.
from typing import Any

def __getattr__(name: str) -> Any: ...
