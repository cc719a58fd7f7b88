"""Partial all-reduces: rounds that wait for a quorum of workers and lose no late contribution.

See docs/partial.md.
"""

from herring.arrays.partial import *  # noqa: F403
from herring.arrays.partial import __all__ as __all__
