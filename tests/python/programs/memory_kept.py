"""What a rank has made, used and ended leaves nothing behind, however much of it there was.

Counts the bytes that this process has allocated, before and after many of a kind. An entry of a map
takes 64 bytes or more. What is made once, such as modules that describe the stack of a late rank,
is in one of the spans only, so the span with the least counts. Plans are left out: rounds wait in
reports, for a time.
"""

import ctypes
import itertools

import numpy as np

import herring

TURNS = 1000  # of a span
SPANS = 3
LIMIT = 48


class Mallinfo(ctypes.Structure):
    """The C library's `struct mallinfo2`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def allocated() -> int:
    """Returns how many bytes this process has allocated and not freed."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Mallinfo
    info = library.mallinfo2()
    return info.uordblks + info.hblkhd


def group(_name: str) -> None:
    """Makes, uses and destroys a group without a name."""
    made = herring.new_group(range(herring.size()))
    herring.barrier(group=made)
    made.destroy()


def named_group(name: str) -> None:
    """Makes and destroys a group with a name of its own."""
    herring.new_group(range(herring.size()), name=name).destroy()


def series(name: str) -> None:
    """Begins and ends a series of partial all-reduces."""
    made = herring.PartialReduction(10, "float32", sync="majority", name=name)
    list(made.flush(np.ones(10, np.float32)))


herring.init()
for number in range(4200):  # as many names as are remembered for flight records
    herring.barrier(name=f"a name of some length {number} ")
for use in group, named_group, series:
    found = []
    for number in range((1 + SPANS) * TURNS):
        if number and number % TURNS == 0:
            herring.barrier()
            found.append(allocated())
        use(f"a name of some length {number} ")
    herring.barrier()
    found.append(allocated())
    left = min(after - before for before, after in itertools.pairwise(found)) / TURNS
    print(f"rank {herring.rank()}: each {use.__name__} leaves {left:.1f} bytes", flush=True)
    assert left < LIMIT, (use, left)
