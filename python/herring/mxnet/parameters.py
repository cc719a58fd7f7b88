"""Copies the parameters of one rank to all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx

from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group
from herring.arrays.values import broadcast_values
from herring.errors import InvalidArgumentError
from herring.mxnet.arrays import say_copies

__all__ = ["broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any], root: int = 0, *, name: str | None = None, group: Group | None = None
) -> None:
    """Copies parameters from rank `root` to all ranks, in place (collective).

    Args:
      params: `net.collect_params()`, or a dictionary of NDArrays. Ranks match parameters by the
        sorted order of their names.
      root: the rank whose values are copied; its index in the group if `group` is given.
      name: name of the operation, the same on all ranks; None numbers the calls.
      group: the ranks that take part; None means all ranks.

    Raises:
      InvalidArgumentError: a parameter has no values yet.
      MismatchError: shapes or dtypes differ between ranks.
      PeerLostError: a worker or server died or left.
      TimeoutError: a rank did not make the call in time.
    """
    listed = [params[key] for key in sorted(params)]
    name = name or name_of_next("broadcast_parameters", group)
    values = []
    for one in listed:
        if isinstance(one, mx.gluon.Parameter):
            try:
                one = one.list_data()[0]
            except (mx.gluon.parameter.DeferredInitializationError, RuntimeError) as error:
                raise InvalidArgumentError(
                    f"parameter {one.name!r} has no values yet; initialize the net, and call it "
                    "once if it infers shapes from the first batch"
                ) from error
        say_copies("herring.mxnet.broadcast_parameters", one)
        values.append(one.asnumpy())
    for one, value in zip(listed, broadcast_values(values, root, name=name, group=group)):
        like = one.list_data()[0] if isinstance(one, mx.gluon.Parameter) else one
        make = mx.np.array if isinstance(like, mx.np.ndarray) else mx.nd.array
        array = make(value, dtype=value.dtype)
        if isinstance(one, mx.gluon.Parameter):
            one.set_data(array)
        else:
            one[:] = array
