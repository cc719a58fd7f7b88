"""Elastic training as in Horovod: the state of a program, and the function that goes on with it.

A job of Herring keeps its workers. So an elastic job is a series of jobs, its generations (see
`herring.elastic`). `init` joins the first one, and `run` the others.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import herring
from herring.arrays import runtime
from herring.arrays.objects import allgather_plain
from herring.elastic import running
from herring.elastic.translation import own_errors
from herring.errors import HerringError, PeerLostError, TimeoutError
from herring.horovod.common import basics
from herring.horovod.common.exceptions import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    internal_errors,
)

Train = TypeVar("Train", bound=Callable[..., Any])


class Enters(Protocol):
    """An object that needs other ranks in each generation."""

    def enter_job(self) -> None:
        """Does what it needs all ranks for (collective)."""


class _Training:
    """The training that `run` has begun in this process."""

    runs = False
    checks = 0  # how often it has looked for newcomers in this generation
    ends = False  # whether this generation ends for newcomers
    root = 0  # the rank that is furthest


_entering: list[weakref.ref[Enters]] = []  # in the order in which the program has made them


class State:
    """What all workers have in common, and what training goes on with.

    Subclasses define `save`, `restore` and `sync`.

    Args:
      bcast_object: sends an object from one rank to all, such as `hvd.broadcast_object`.
      get_rank: returns the rank, such as `hvd.rank`.
    """

    _advance = 0  # commits and generations; 0: its values have never been those of a job

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that are called when workers have gone or come, before `sync`.

        Workers that come do not call them, so they cannot call collectives.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls `reset`, and the functions of `register_reset_callbacks`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, to which training returns if a worker is lost; takes newcomers.

        All ranks call it equally often.

        Raises:
          HostsUpdatedInterrupt: workers wait to join; `run` catches it.
        """
        self.save()
        self._advance += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Takes newcomers if there are some; all ranks call it equally often.

        It costs nothing unless a worker waits.

        Raises:
          HostsUpdatedInterrupt: workers wait to join; `run` catches it.
        """
        if not _Training.runs:
            return
        _Training.checks += 1
        with internal_errors():
            _Training.ends = running.ends_at(_Training.checks)
        if _Training.ends:
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keeps a copy of the values in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Returns to the values that were saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the values of one (collective)."""
        raise NotImplementedError

    def reset(self) -> None:
        """Does what is needed after a change of the workers, before `sync`: here nothing."""


class ObjectState(State):
    """A state of Python objects, each an attribute.

    Args:
      bcast_object: sends an object from one rank to all, such as `hvd.broadcast_object`. For a rank
        other than 0 it is called with `root_rank`.
      get_rank: returns the rank, such as `hvd.rank`.
      **kwargs: the objects by name.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(kwargs)
        self._set(kwargs)
        self._saved = copy.deepcopy(kwargs)

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def save(self) -> None:
        """Keeps a copy of the objects."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Returns to the objects that were saved last."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the objects of the rank that is furthest, and saves them (collective)."""
        if self._names:
            chosen = {"root_rank": root()} if root() else {}
            self._set(self._bcast_object(self._values(), **chosen))
        self.save()


def root() -> int:
    """Returns the rank whose values all ranks get in this generation: the first at the furthest."""
    return _Training.root if herring.is_initialized() else 0


def defers() -> bool:
    """Returns whether what needs other ranks has to wait until training begins.

    In an elastic job a worker that comes later has no others with it before that.
    """
    return runtime.is_elastic() and not (_Training.runs or running.has_trained())


def enter_later(one: Enters) -> None:
    """Calls `enter_job` in each generation, when training begins, in the order of these calls."""
    _entering.append(weakref.ref(one))


def run(func: Train) -> Train:
    """Makes a training function that goes on when workers die and when workers come.

        @hvd.elastic.run
        def train(state): ...

        train(hvd.elastic.TorchState(model, optimizer, epoch=0))

    If a worker is lost, the others return to the last commit. They form a new generation, in which
    all get the state of the worker that is furthest, and call `func` again. If a worker comes, they
    do so at a commit, with the present values. Collectives belong inside `func`. If the job is not
    elastic (``herring run --elastic``), `func` is called once, and errors are raised as always.

    Args:
      func: a function whose first argument is a `State`.

    Returns:
      A function with the same arguments, which returns what `func` returns at the end.

    Raises:
      PeerLostError: there are fewer workers than must take part, and for too long.
      HorovodInternalError: ranks disagree, which would happen again. In a job that is not elastic:
        any collective failed.
      SystemExit: the training had ended when this worker came.
    """

    @functools.wraps(func)
    def elastic(state: State, *args: Any, **kwargs: Any) -> Any:
        def train() -> Any:
            with _undone(state):
                return func(state, *args, **kwargs)

        if runtime.is_elastic() and not running.has_trained():
            return _go_on(state, train)
        state.sync()
        return func(state, *args, **kwargs)

    return elastic  # type: ignore[return-value]


def _go_on(state: State, train: Callable[[], Any]) -> Any:
    begun = False

    def begin() -> None:
        nonlocal begun
        with _undone(state):
            if begun:
                state.on_reset()
            begun = True
            _begin(state)

    _Training.runs = True
    try:
        return running.go_on(train, begin, basics.join_next)
    finally:
        _Training.runs = False


def _begin(state: State) -> None:
    """Makes the state of all ranks equal, and lets wrappers enter the job (collective)."""
    _Training.checks, _Training.ends = 0, False
    advances = allgather_plain(state._advance, name="horovod.elastic.advance")
    _Training.root = advances.index(max(advances))
    state.sync()
    state._advance = max(advances) + 1
    for reference in _entering:
        if (one := reference()) is not None:
            with internal_errors():
                one.enter_job()


@contextlib.contextmanager
def _undone(state: State) -> Iterator[None]:
    """Returns to the last commit if the block loses a worker, and tells how training goes on."""
    try:
        with own_errors():
            yield
    except HostsUpdatedInterrupt as error:
        if _Training.ends:
            raise running.GenerationEnds from None
        raise PeerLostError("the program itself raised HostsUpdatedInterrupt") from error
    except (PeerLostError, TimeoutError):
        state.restore()
        raise
    except HorovodInternalError as error:
        if isinstance(error, HerringError):
            raise  # it would happen again
        state.restore()
        raise PeerLostError(f"the program itself raised HorovodInternalError: {error}") from error
