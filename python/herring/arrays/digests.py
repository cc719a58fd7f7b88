"""What ranks compare beside what the core sees of a call: a digest of a text about it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from herring.errors import HerringError, MismatchError

__all__ = ["digest", "explained"]


def digest(text: str) -> int:
    """What an operation without a root has in its place: 1 to 2**31 - 1."""
    found = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(found, "little") & 0x7FFFFFFF or 1


def explained(error: HerringError, about: Sequence[str], rank: int) -> HerringError:
    """An error in terms of the texts of this rank, should ranks disagree about their digest.

    Args:
      error: of an operation.
      about: the texts; none: there was no digest.
      rank: of this process.
    """
    if not isinstance(error, MismatchError) or not about:
        return error
    text = re.sub(r", root (\d+)", lambda found: f", call #{int(found[1]):x}", str(error))
    return MismatchError(f"{text}; rank {rank} gave {', '.join(about)}")
