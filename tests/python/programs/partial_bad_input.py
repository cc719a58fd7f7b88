"""Passes wrong arguments to partial all-reduces."""

import numpy as np

import herring

herring.init()
rank = herring.rank()


def refused(kind, text, *arguments, **options):
    try:
        herring.allreduce(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__} for {text}")


bad, array = herring.InvalidArgumentError, np.zeros(8, np.float32)
refused(
    bad, "quorum is 4; it must be from 1 to the number of workers, 3", array, sync=herring.Quorum(4)
)
refused(bad, "quorum is 0", array, sync=herring.Quorum(0))
refused(bad, "grace is -0.5 s", array, sync=herring.Quorum(1, grace=-0.5))
refused(bad, "staleness is -1", array, sync=herring.Quorum(1, staleness=-1))
refused(bad, "sync is 'most'", array, sync="most")
refused(bad, "op 'max'", array, "max", sync="solo", name="max")
refused(bad, "takes no prescale", array, prescale=2.0, sync="solo")
refused(
    herring.MismatchError,
    "rank 1: sync='majority'",
    array,
    name="modes",
    sync="majority" if rank == 1 else "solo",
)
refused(
    herring.MismatchError,
    "rank 2: sync='full'",
    array,
    name="full",
    sync="full" if rank == 2 else "solo",
)
herring.allreduce(array, sync="majority", name="fine")
refused(bad, "began with sync='majority'", array, sync="solo", name="fine")
refused(bad, "the array has 9", np.zeros(9, np.float32), sync="majority", name="fine")
results = herring.flush(array, name="fine")
assert len(results) >= 1
herring.allreduce(array, sync="full", name="ordinary")
