"""The series behind `herring.allreduce(sync=)`, each known by its name and group."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import Operator, Timeout, name_given, operator_of
from herring.arrays.calls import called
from herring.arrays.collectives import shape_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import forget_job
from herring.errors import InvalidArgumentError
from herring.partial.quorum import Quorum, is_partial
from herring.partial.reduction import PartialReduction, agree, mode_text, require_writable
from herring.partial.replay import Replay
from herring.partial.statistics import RoundStatistics

_Key = tuple[str, Group | None]
# The series behind allreduce(sync=), by name and group; None if it began with sync="full".
_series: dict[_Key, PartialReduction | None] = {}
_began_with: dict[_Key, str] = {}
# The statistics of all series of a name, including series that were flushed. A program may give
# each series a name of its own, so only the latest names whose series has ended are kept.
_MOST_ENDED = 100
_statistics: dict[_Key, RoundStatistics] = {}
# The results that are still to be returned, of all-reduces and flushes that have timed out.
_flushed: dict[_Key, list[np.ndarray]] = {}


def _forget() -> None:
    _series.clear()
    _began_with.clear()
    _statistics.clear()
    _flushed.clear()


forget_job.append(_forget)


def _series_of(
    name: str,
    sync: str | Quorum | Replay,
    array: Any,
    op: Operator,
    group: Group | None,
    algorithm: str,
) -> PartialReduction | None:
    key = (name, group)
    if key in _series:
        now = mode_text(sync, algorithm)
        if _began_with[key] != now:
            raise InvalidArgumentError(
                f"the all-reduces of the series '{name}' began with {_began_with[key]}, now with "
                f"{now}; flush() it first, or give this one another name"
            )
        series = _series[key]
        if series is not None and series.op != op:
            raise InvalidArgumentError(
                f"the all-reduces of the series '{name}' began with op='{series.op}', now op is "
                f"'{op}'; flush() it first, or give this one another name"
            )
        return series
    with called("allgather", f"{name}.sync", group):
        partial = is_partial(sync, scope_of(group).size)
        if partial:
            require_writable(array)
        now = mode_text(sync, algorithm)
    if not partial:
        agree(name, now, group)
        series = None
    else:
        dtype = _core.dtype_of(array)
        elements = int(np.prod(shape_of(array)))
        statistics = _statistics.setdefault(key, RoundStatistics())
        series = PartialReduction(
            elements,
            dtype,
            sync=sync,
            op=op,
            name=name,
            statistics=statistics,
            group=group,
            algorithm=algorithm,
        )
    _series[key] = series
    _began_with[key] = now
    return series


def allreduce_in_rounds(
    array: Any,
    op: Operator,
    sync: str | Quorum | Replay,
    name: str | None,
    timeout: Timeout,
    group: Group | None,
    algorithm: str,
) -> bool:
    """Does `herring.allreduce` with `sync`; returns False for "full", an ordinary all-reduce.

    The contribution of a call that timed out is in the series. The next call waits for that call's
    result first, which `flush` then returns. So no result is lost, and each call contributes.

    Args:
      array: The contribution, to which the result is written.
      op: "average" or "sum".
      sync: What began the series, or begins it.
      name: The name of the series; None means "allreduce".
      timeout: Seconds to wait for each result; None means to wait until the round's deadline.
      algorithm: Who closes the rounds and sums; see `PartialReduction`.

    Raises:
      InvalidArgumentError: An argument cannot be used, or differs from those of the series. Nothing
        was contributed.
      TimeoutError: The round did not end in time.
    """
    name = name_given(name) or "allreduce"
    series = _series_of(name, sync, array, operator_of(op), group, algorithm)
    if series is None:
        return False
    if series.owes:
        missed = _copy_of(array)
        series.take(missed, timeout)
        _flushed.setdefault((name, group), []).append(_values_of(missed))
    series.allreduce(array, timeout)
    return True


def _copy_of(array: Any) -> Any:
    """Returns a writable copy of an array in host memory, of the same dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.detach().clone(memory_format=torch.contiguous_format)
    return np.array(array, copy=True, order="C")


def _values_of(array: Any) -> np.ndarray:
    """Returns a copy of an array from `_copy_of`; of bfloat16 the bits, which NumPy lacks."""
    if isinstance(array, np.ndarray):
        return array.copy()
    torch = sys.modules["torch"]
    bits = array.dtype == torch.bfloat16
    values: np.ndarray = (array.view(torch.uint16) if bits else array).numpy().copy()
    return values


def flush(
    array: Any,
    *,
    name: str = "allreduce",
    timeout: Timeout = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Ends a series of `allreduce(..., sync=)` with a round of all pending data (collective).

    Ranks may have made different numbers of calls. A rank that flushes takes the results of the
    other ranks' rounds until all ranks flush, so the last result is the same on all ranks. The next
    all-reduce with this name begins another series.

    Args:
      array: This rank's last contribution, which may be zeros. Not changed.
      name: The name of the series.
      timeout: Seconds to wait for each result; None means to wait until its deadline.
      group: The group in which the series began; None means all ranks.

    Returns:
      The results that this rank has not received yet, in order, including those of calls that timed
      out. Results of bfloat16 are their bits, in uint16.

    Raises:
      InvalidArgumentError: There is no such series, or `array` does not fit.
      TimeoutError: A rank neither goes on nor flushes. Another call goes on waiting and does not
        contribute `array` again.
    """
    scope_of(group)
    key = (name_given(name) or "allreduce", group)
    series = _series.get(key)
    if series is None:
        raise InvalidArgumentError(
            f"the partial all-reduce '{name}' was flushed already, or began with sync='full'; "
            "there is nothing to flush"
            if key in _statistics or key in _series
            else f"no partial all-reduce named '{name}' was begun"
        )
    work = _copy_of(array)
    results = _flushed.setdefault(key, [])
    for _ in series.flush(work, timeout):
        results.append(_values_of(work))
    del _series[key], _began_with[key], _flushed[key]
    _statistics[key] = _statistics.pop(key)  # becomes the latest
    ended = [each for each in _statistics if each not in _series]
    if len(ended) > _MOST_ENDED:
        del _statistics[ended[0]]
    return results


def partial_statistics(name: str = "allreduce", *, group: Group | None = None) -> RoundStatistics:
    """Returns statistics of the rounds of `allreduce(..., sync=)` with a name, also after a flush.

    Of the names whose series was flushed, Herring keeps the statistics of the latest 100.

    Args:
      name: The name of the series.
      group: The group in which the series began; None means all ranks.

    Returns:
      The statistics of all series of this name.

    Raises:
      InvalidArgumentError: There was no such series, or its statistics are not kept any more.
    """
    scope_of(group)
    key = (name_given(name) or "allreduce", group)
    if key not in _statistics:
        raise InvalidArgumentError(
            f"no partial all-reduce named '{key[0]}' was begun, or it was flushed and is not among "
            f"the latest {_MOST_ENDED} names whose statistics are kept"
        )
    return _statistics[key]
