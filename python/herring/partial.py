"""Partial all-reduces: rounds that wait for few, and lose nothing of those who are late.

See docs/partial.md.
"""

from herring.arrays.partial import *  # noqa: F403
from herring.arrays.partial import __all__ as __all__
