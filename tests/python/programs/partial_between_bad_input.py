"""Passes wrong arguments to partial all-reduces between workers."""

import numpy as np

import herring
from herring.partial import PartialReduction

herring.init()
rank = herring.rank()
bad, array = herring.InvalidArgumentError, np.zeros(8, np.float32)


def refused(kind, text, **options):
    try:
        herring.allreduce(array, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__} for {text}")


refused(bad, "takes sync='solo' or 'majority'", sync=herring.Quorum(2), algorithm="ring")
refused(bad, "takes sync='solo' or 'majority'", sync=herring.Replay("x"), algorithm="ring")
refused(bad, "'doubling'", sync="solo", algorithm="cuda-butterfly")
refused(bad, "'doubling'", sync="solo", algorithm="fast")
refused(bad, "takes no prescale", sync="solo", algorithm="ring", postscale=2.0)
refused(bad, "op 'max'", sync="solo", algorithm="ring", op="max", name="max")
refused(
    herring.MismatchError,
    "rank 1: sync='solo', algorithm='tree', 8 elements of float32, op average",
    sync="solo",
    name="modes",
    algorithm="tree" if rank == 1 else "ring",
)
refused(
    herring.MismatchError,
    "rank 2: sync='solo', 8 elements of float32, op average",
    sync="solo",
    name="servers",
    algorithm="herring" if rank == 2 else "ring",
)
herring.allreduce(array, sync="majority", algorithm="ring", name="fine")
refused(bad, "algorithm='ring', now with sync='majority'", sync="majority", name="fine")
refused(bad, "began with sync='majority', algorithm='ring'", sync="solo", name="fine")
herring.flush(array, name="fine")
try:
    herring.partial_statistics("fine").save("nowhere.json")
except bad as error:
    assert "has algorithm 'ring'" in str(error), error
else:
    raise AssertionError("recorded")
herring.allreduce(array, sync="solo", name="fine")  # by servers now
herring.flush(array, name="fine")
herring.allreduce(array, sync="full", algorithm="ring", name="ordinary")
series = PartialReduction(8, "float32", sync="solo", algorithm="doubling", name="twice")
try:
    PartialReduction(8, "float32", sync="solo", algorithm="doubling", name="twice").allreduce(array)
except bad as error:
    assert "is already in progress" in str(error), error
else:
    raise AssertionError("begun twice")
series.allreduce(array)
for _ in series.flush(array):
    pass
print("right", flush=True)
