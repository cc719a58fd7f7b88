"""Runs training in one generation of an elastic job after another."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import herring
from herring import _core
from herring.arrays import runtime
from herring.base.reminders import FIRST_REMINDER
from herring.base.units import counted
from herring.elastic.translation import own_errors
from herring.errors import ConfigurationError, HerringError, PeerLostError, TimeoutError
from herring.lobby.connection import Connection, Generation, MemberLeft, TrainingEnded
from herring.lobby.notice import EXIT_LEFT, Notice, Watch
from herring.rendezvous import joined
from herring.rendezvous.detect import Rendezvous, WorkerEnvironment, parse_address, parse_secret
from herring.rendezvous.endpoint import bind_any, resolve
from herring.rendezvous.meet import Meeting, read_secret_file
from herring.rendezvous.network import with_port
from herring.rendezvous.publication import Wait
from herring.rendezvous.settings import value_of
from herring.rendezvous.variables import integer

Train = TypeVar("Train", bound=Callable[..., Any])

# All members of a generation are there when it begins, so this is short unless the user says.
_START_SECONDS = 15.0
_LEAVE_SECONDS = 10.0  # all ranks come to the same commit
_MOST_FAILURES = 3

_connection: Connection | None = None
_leaves = False
_generation: Generation | None = None
_trained = False
_commits = 0


class GenerationEnds(BaseException):
    """Leaves the training function at a commit; programs that catch errors do not catch it."""


def generation() -> int:
    """Returns how often the job has begun anew for other workers, this time included.

    Returns:
      1, 2, and so on; 0 outside of an elastic job.
    """
    return 0 if _generation is None else _generation.number


def committed(number: int) -> None:
    """Leaves the training function if this generation ends at this commit."""
    if ends_at(number):
        raise GenerationEnds


def ends_at(number: int) -> bool:
    """Tells that a commit of this generation is complete; returns whether it ends there."""
    global _commits
    _commits += 1
    if _generation is None or _connection is None:
        return False
    return _connection.committed(number)


def leave() -> None:
    """Lets this worker leave the elastic job between two steps, so that the others lose none.

    Call it, from any thread, when the process is about to be ended: when a cloud says so, for
    example. It returns at once. The training function is left at one of the next commits, and
    `herring.elastic.run` raises ``SystemExit(75)``. The others go on without this worker. If the
    training ends before that, it ends as always. A signal does the same with ``HERRING_NOTICE``.
    Outside of an elastic job it does nothing.
    """
    global _leaves
    _leaves = True
    if _connection is not None:
        _connection.leave()


def run(train: Train) -> Train:
    """Makes a training function that goes on when workers die and when workers come.

        @herring.elastic.run
        def train(state):
            model = herring.torch.DistributedDataParallel(state.model)
            while state.epoch < 10:
                ...
                state.commit()

        train(herring.torch.State(model=model, optimizer=optimizer, epoch=0))

    The function joins the job by itself, so the program does not call `herring.init`. `train` is
    called with the state. Whenever workers are lost or come, `train` is left, the others form a new
    job, and it is called again: it must begin where the state is. All collectives belong inside,
    wrappers of models and optimizers too, because those of the job before cannot be used.

    The job is elastic under ``herring run --elastic``, or if ``HERRING_ELASTIC`` names the lobby
    (``herring rendezvous``). Otherwise `train` is called once, and errors are raised as always.

    Args:
      train: A function whose first argument is a `State`.

    Returns:
      A function with the same arguments, which returns what `train` returns at the end. Its keyword
      argument ``settings``, a dictionary, is for `herring.init`.

    Raises:
      ConfigurationError: This process is in a job already, or the environment is wrong.
      PeerLostError: There are fewer workers than must take part, and for too long. In a job that is
        not elastic: a worker or a server was lost.
      SystemExit: The training had ended when this worker came (0), or it has left the job (75).
    """

    @functools.wraps(train)
    def elastic(state: Any, *args: Any, settings: Any = None, **kwargs: Any) -> Any:
        given = dict(settings or {})
        if not runtime.is_elastic():
            herring.init(**given)
            state._begin()
            return train(state, *args, **kwargs)
        return go_on(lambda: train(state, *args, **kwargs), state._begin, lambda: join(given))

    return elastic  # type: ignore[return-value]


def join(settings: dict[str, Any], enter: Callable[[], None] = lambda: None) -> None:
    """Joins the next generation.

    Args:
      settings: Values that override settings by name.
      enter: Does what all of its workers do first; it may call collectives.

    Raises:
      SystemExit: The training had ended when this worker came (0), or it has left the job (75).
      PeerLostError: There are fewer workers than must take part, and for too long.
    """
    connection = _connect()
    failures = 0
    while True:
        try:
            present, listener = _next(connection)
        except TrainingEnded as over:
            _core.log_info(str(over))
            sys.exit(0)
        except MemberLeft as left:
            _core.log_info(str(left))
            connection.close()
            sys.exit(EXIT_LEFT)
        try:
            _join(connection, present, listener, settings)
            enter()
            return
        except (PeerLostError, TimeoutError) as error:
            failures += 1
            if failures == _MOST_FAILURES:
                raise
            _tell_loss(error)
        herring.shutdown()


def go_on(train: Callable[[], Any], begin: Callable[[], None], join: Callable[[], None]) -> Any:
    """Calls `train` in one generation after another, until it returns.

    Args:
      train: The training. It is called again after a `PeerLostError`, a `TimeoutError` and a
        `GenerationEnds`.
      begin: Makes what the workers have in common equal; called in each generation before `train`.
      join: Joins the next generation by means of the function of this name.

    Raises:
      ConfigurationError: This process is in another job, or its training has ended.
      PeerLostError, TimeoutError: Three generations in a row did not begin, or three have timed out
        since the last commit. A call that not all ranks make times out in each generation.
    """
    if _trained or (herring.is_initialized() and _generation is None):
        raise ConfigurationError(
            "herring.elastic.run joins the elastic job itself, once: leave out herring.init(), and "
            "put everything that needs other ranks into one training function"
        )
    with heeding_notice(leave, _job_ends):
        return _go_on(train, begin, join)


def _go_on(train: Callable[[], Any], begin: Callable[[], None], join: Callable[[], None]) -> Any:
    global _trained
    lost = 0.0  # when the generation before has failed
    failures = 0  # generations in a row that did not begin
    timed_out = 0  # those that had timeouts since the last commit
    while True:
        if not herring.is_initialized():  # it may have joined the first one before
            join()
        began, commits = False, _commits
        try:
            with own_errors():
                begin()
                began, failures = True, 0
                _tell_begin(lost)
                result = train()
            herring.barrier(name="herring.elastic.finished")
            _connect().finished()
            _trained = True
            return result
        except GenerationEnds:
            lost = 0.0
            _leave_together()
        except (PeerLostError, TimeoutError) as error:
            lost = time.monotonic()
            failures += not began
            if _commits > commits:
                timed_out = 0
            timed_out += began and isinstance(error, TimeoutError)
            if _MOST_FAILURES in (failures, timed_out):
                raise
            _tell_loss(error)
            runtime.leave_failed()
        except Exception:
            _desert()
            raise
        herring.shutdown()


def _desert() -> None:
    """Leaves the job and the lobby after an error of the program, so that the others go on."""
    global _connection, _generation
    runtime.leave_failed()
    if _connection is not None:
        _connection.close()
    _connection = _generation = None


def has_trained() -> bool:
    """Returns whether the training of this process has ended, so that no generation follows."""
    return _trained


def _connect() -> Connection:
    global _connection
    if _connection is None:
        _connection = connect(os.environ, server=False)
        slot = integer(dict(os.environ), "HERRING_RANK") or 0
        joined.tell(value_of(os.environ, "HERRING_JOB"), slot)
        if _leaves:
            _connection.leave()
    return _connection


@contextlib.contextmanager
def heeding_notice(
    leave: Callable[[], None], job_ends: Callable[[], threading.Event]
) -> Iterator[None]:
    """Leaves the job after the signal that ``HERRING_NOTICE`` names.

    Args:
      job_ends: Returns what is set when somebody ends the whole job.
    """
    notice = Notice.parse(value_of(os.environ, "HERRING_NOTICE"))
    if notice is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        _core.log_warning("only the main thread can train with HERRING_NOTICE, which is ignored")
        yield
        return
    name = notice.signal.name

    def leave_within(seconds: float) -> bool:
        _core.log_info(f"leaves the elastic job at its next commit after {name}")
        leave()
        return job_ends().wait(seconds)

    def late() -> None:
        _core.log_warning(f"ends now: there was no commit within {notice.seconds:g} s after {name}")

    with Watch(notice, leave_within, late):
        yield


def _job_ends() -> threading.Event:
    return threading.Event() if _connection is None else _connection.job_ends


def connect(environ: Mapping[str, str], server: bool) -> Connection:
    """Connects to the lobby that ``HERRING_ELASTIC`` names.

    Raises:
      ConfigurationError: The address or the secret is missing or wrong.
      AuthenticationError: The lobby does not know the secret.
      TimeoutError: The lobby cannot be reached.
    """
    patience, first_reminder, _ = _core.start_up_times({})
    host, port = parse_address(environ["HERRING_ELASTIC"], "HERRING_ELASTIC")
    wait = Wait("this process", patience, first_reminder or FIRST_REMINDER)
    address = resolve(host, "HERRING_ELASTIC", environ, wait)
    slot = integer(dict(environ), "HERRING_RANK") or 0
    return Connection(address, port, secret_of(environ), slot, server, patience)


def secret_of(environ: Mapping[str, str]) -> bytes:
    """Returns the secret of an elastic job; raises ConfigurationError if it cannot be read."""
    path = environ.get("HERRING_SECRET_FILE", "").strip()
    if path:
        return read_secret_file(path)
    if environ.get("HERRING_SECRET", "").strip():
        return parse_secret(environ["HERRING_SECRET"])
    raise ConfigurationError(
        "an elastic job needs a secret: set HERRING_SECRET_FILE to a file that all of its hosts "
        "have ('(umask 077; openssl rand -hex 32 > $HOME/secret)'), as for 'herring rendezvous'"
    )


def settings_of(environ: Mapping[str, str], present: Generation) -> dict[str, Any]:
    """Returns the settings with which a process joins a generation."""
    return {"job": f"{value_of(environ, 'HERRING_JOB')}.{present.number}"}


def _next(connection: Connection) -> tuple[Generation, socket.socket]:
    """Waits for the next generation; returns it with a socket that listens if this is rank 0."""
    listener = bind_any(connection.own_address, os.environ)
    try:
        return connection.next_generation(with_port(*listener.getsockname()[:2])), listener
    except BaseException:
        listener.close()
        raise


def _join(
    connection: Connection, present: Generation, listener: socket.socket, settings: dict[str, Any]
) -> None:
    """Joins the job of a generation."""
    global _generation
    with listener:
        host, port = parse_address(present.address, "HERRING_ELASTIC")
        worker = WorkerEnvironment(
            rank=present.rank,
            size=present.size,
            local_rank=None,
            local_size=None,
            rendezvous=Rendezvous("address", host, port, variable="HERRING_ELASTIC"),
            source="elastic",
            job=settings_of(os.environ, present)["job"],
            servers=present.servers,
            secret=present.secret,
        )

        def met(_: WorkerEnvironment, _patience: float, _first: float) -> Meeting:
            own = listener.dup() if present.rank == 0 else None
            if own is None:
                listener.close()
            return Meeting(present.address, present.secret, own)

        given = {**settings, **_timeline_of(present, settings)}
        if not os.environ.get("HERRING_CONNECT_TIMEOUT"):
            given.setdefault("connect_timeout", _START_SECONDS)
        try:
            with connection.starting():
                runtime.start(lambda: worker, met, given)
        except HerringError as error:
            if connection.broken:
                raise PeerLostError(
                    f"a member of generation {present.number} was lost when it began"
                ) from error
            raise
    _generation = present


def _timeline_of(present: Generation, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the setting that gives a later generation a timeline of its own."""
    first = os.fspath(settings.get("timeline") or value_of(os.environ, "HERRING_TIMELINE"))
    if not first or present.number == 1:
        return {}
    stem, extension = os.path.splitext(first)
    return {"timeline": f"{stem}.{present.number}{extension}"}


def _leave_together() -> None:
    """Leaves a generation when all others leave it, too."""
    try:
        herring.barrier(name="herring.elastic.leave", timeout=_LEAVE_SECONDS)
    except (PeerLostError, TimeoutError):
        pass  # the next generation forms anyway


def _tell_loss(error: Exception) -> None:
    _core.log_warning(f"goes on with the workers that are left after this: {error}")


def _tell_begin(lost: float) -> None:
    if herring.rank() != 0 or generation() == 1:
        return
    after = f", {time.monotonic() - lost:.2f} s after the loss" if lost else ""
    workers = counted(herring.size(), "worker")
    _core.log_info(f"generation {generation()} has begun with {workers}{after}")
