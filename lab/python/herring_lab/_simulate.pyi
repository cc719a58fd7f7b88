# The compiled module is private to this package, which says the types of what it returns.
from typing import Any

def __getattr__(name: str) -> Any: ...
