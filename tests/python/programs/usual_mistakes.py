"""Makes common mistakes: each error says what to do instead."""

import datetime

import numpy as np

import herring
from support import raises

herring.init()
try:
    import torch
except ImportError:
    torch = None
bad = herring.InvalidArgumentError
raises(
    bad,
    "the dtype complex64 is not supported; use one of float32",
    herring.allreduce,
    np.ones(3, np.complex64),
)
raises(bad, "pairs of floats", herring.allreduce, np.ones(3, np.complex64))
raises(bad, "the dtype uint16 is not", herring.allreduce, np.ones(3, np.uint16), "sum")
raises(bad, "op is None; it must be one of 'sum', 'average'", herring.allreduce, np.ones(3), None)
raises(
    bad,
    "timeout is '5 parsecs'; it must be more than 0 seconds",
    herring.allreduce,
    np.ones(3),
    timeout="5 parsecs",
)
for timeout in (
    "500s",
    "450000ms",
    "20m",
    500,
    500.5,
    np.float32(300),
    datetime.timedelta(minutes=5),
):
    herring.barrier(timeout=timeout)
    herring.new_group([0], timeout=timeout)
    herring.allreduce_async(np.ones(3)).wait(timeout)
raises(bad, "which is this rank itself", herring.send, np.ones(3), 0)
for name, hint in (
    ("get_rank", "use rank()"),
    ("get_world_size", "use size()"),
    ("all_reduce", "use allreduce(array)"),
    ("Average", "op='average'"),
    ("allreducee", "did you mean 'allreduce'?"),
    ("DistributedDataParallel", "it is in herring.torch"),
):
    raises(AttributeError, hint, getattr, herring, name)
    assert not hasattr(herring, name)


class Exported:
    """An array whose library raises an exception when the array is exported."""

    def __init__(self, error):
        self.error = error

    def __dlpack__(self, **_):
        raise self.error

    def __dlpack_device__(self):
        return 1, 0


# DLPack's own exception means that no library can take the array; others have another cause.
raises(bad, "of this Exported", herring.allreduce, Exported(BufferError("sparse")))
failed = ZeroDivisionError("in a kernel")
raises(ZeroDivisionError, "in a kernel", herring.allreduce, Exported(failed))
if torch is not None:
    import herring.torch

    ops = torch.distributed.ReduceOp
    for op, wanted in ((ops.SUM, 2), (ops.AVG, 2), (ops(ops.MAX), 2), (ops.PRODUCT, 2)):
        assert herring.torch.allreduce(torch.full((3,), 2.0), op).tolist() == [wanted] * 3
    raises(bad, "RedOpType.BAND", herring.torch.allreduce, torch.ones(3), ops.BAND)
    raises(
        bad,
        "the dtype complex64 is not",
        herring.torch.allreduce,
        torch.ones(3, dtype=torch.complex64),
    )
    raises(AttributeError, "it is in herring itself", getattr, herring.torch, "send")
    raises(AttributeError, "use rank()", getattr, herring.torch, "get_rank")
print("in words")
