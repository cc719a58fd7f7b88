"""The life of this process in a job: `init`, `shutdown`, and its ranks and sizes.

A process is in one job at a time. After `shutdown` it may call `init` again.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypedDict, cast

from herring import _core
from herring.arrays.apart import not_waited_for
from herring.arrays.arguments import shown, text_of
from herring.arrays.devices import find_compiler
from herring.arrays.names import forget_names
from herring.arrays.seconds import Meter, Seconds
from herring.base.version import version
from herring.errors import ConfigurationError, InvalidArgumentError, ShutdownError
from herring.process import logs, stacks
from herring.rendezvous import joined
from herring.rendezvous.detect import WorkerEnvironment, detect
from herring.rendezvous.identity import host_identity
from herring.rendezvous.meet import Meeting, meet
from herring.rendezvous.settings import named, variables_of

__all__ = [
    "abort",
    "init",
    "is_initialized",
    "job",
    "leave_failed",
    "local_rank",
    "local_size",
    "node_rank",
    "num_nodes",
    "rank",
    "shutdown",
    "size",
    "start",
    "start_timeline",
    "stats",
    "stop_timeline",
    "write_flight_record",
]

_PATIENCE = 5.0  # seconds that the process's end waits for a thread that is inside init()
_LEAVING = 30.0  # and for one that is inside shutdown()
_AFTER_CHILDREN = -100  # multiprocessing ends its own children before finalizers below 0

_lock = threading.Lock()
_left = threading.Event()  # no thread leaves a job now
_left.set()
_job: _core.Job | None = None
_meter: Meter | None = None  # of the running job
_settings: dict[str, str] = {}  # settings given to the running job's init(), as text
_told_alone = False
learn_job: list[Callable[[_core.Job], None]] = []  # functions called when a job begins
forget_job: list[Callable[[], None]] = []  # called when a job ends; they drop what they keep of it


def init(**settings: Any) -> None:
    """Joins the job that the environment describes; a second call does nothing.

    In a job that has failed, a second call does nothing either, and a warning says so: call
    `shutdown` first. Then all ranks that call `init` form a new job.

    Ranks are detected from the first of these that is present: ``HERRING_*``, torchrun, Open MPI,
    PMIx or PMI, Slurm. Without any of them this process is a job of one worker, and a script logs a
    warning about it; ``HERRING_RANK=0 HERRING_SIZE=1`` says that one worker is intended. `init`
    blocks until every rank and every dedicated server is present.

    Args:
      **settings: Values that override settings by name (see ``herring config``), for example
        ``init(timeout=600, flows=4)``. Settings that all ranks share (segment and frame size,
        credit, flows, proxies) are taken from rank 0. Only ``objects`` must be the same everywhere.

    Raises:
      ConfigurationError: The environment or a setting is missing, wrong or contradictory. Or ranks
        disagree about the job, the rendezvous cannot be bound, or this process has already joined
        the job with other settings.
      AuthenticationError: The rendezvous does not know this job's secret.
      TimeoutError: Not all processes came in time; the message lists those that are missing.
    """

    def met(worker: WorkerEnvironment, patience: float, first_reminder: float) -> Meeting:
        return meet(worker, os.environ, patience, first_reminder)

    if is_elastic() and _job is None:
        raise ConfigurationError(
            "this is an elastic job (HERRING_ELASTIC), which herring.elastic.run joins: leave out "
            "init(), and put everything that needs other ranks into the training function"
        )
    start(lambda: detect(os.environ), met, settings)


def start(
    who: Callable[[], WorkerEnvironment],
    meet_others: Callable[[WorkerEnvironment, float, float], Meeting],
    settings: dict[str, Any],
) -> bool:
    """Joins a job that is described by functions; `init` and the adapters call it.

    Args:
      meet_others: Returns where to register. It is called with the worker, the seconds that it may
        take, and the seconds after which it first says what it waits for.

    Returns:
      False if this process is in a job already; nothing was done then.

    Raises:
      ConfigurationError: The environment or a setting is missing, wrong or contradictory. Or this
        process has already joined the job with other settings.
      AuthenticationError: The rendezvous does not know this job's secret.
      TimeoutError: Not all processes came in time; the message lists those that are missing.
    """
    global _job, _meter, _settings
    with _lock:
        # A launcher tells a worker its ranks, so that one script runs under all launchers.
        outside = variables_of("launcher", "environment")
        misplaced = sorted(name for name in settings if f"HERRING_{name.upper()}" in outside)
        if misplaced:
            raise ConfigurationError(
                f"init() does not take {', '.join(misplaced)}: set the environment variable "
                f"HERRING_{misplaced[0].upper()}, or start with 'herring run', torchrun or mpirun"
            )
        if _job is not None:
            _require_same(settings)
            warn_if_failed()
            return False
        overrides = {name: _text_of_setting(name, value) for name, value in settings.items()}
        given = dict(overrides)
        overrides.update(logs.start(settings))
        stacks.start()
        find_compiler()  # the first call for an array of a GPU may need it
        worker = who()
        place = {"job": worker.job, "rank": str(worker.rank), "size": str(worker.size)}
        if worker.local_size is None:  # the core counts the workers of each host
            place.update(local_rank="0", local_size="1")
        overrides.update(place)
        with contextlib.suppress(ConfigurationError):  # Job.start tells the others too
            for text in _core.setting_warnings():
                _core.log_warning(text)
        patience, first_reminder, right = _core.start_up_times(overrides)
        deadline = time.monotonic() + patience
        meeting = meet_others(worker, patience, first_reminder)
        # One timeout covers both finding the rendezvous and registering there. The core refuses a
        # timeout with a wrong value.
        if right:
            overrides["connect_timeout"] = f"{max(deadline - time.monotonic(), 0.5):.3f}"
        try:
            if worker.rank == 0:  # it tells of the whole job
                _core.set_version(version())
            descriptor = meeting.take_descriptor()
            _job = _core.Job.start(
                rank=worker.rank,
                size=worker.size,
                local_rank=-1 if worker.local_rank is None else worker.local_rank,
                local_size=-1 if worker.local_size is None else worker.local_size,
                servers=worker.servers,
                rendezvous=meeting.address,
                rendezvous_fd=-1 if descriptor is None else descriptor,
                host_id=host_identity(),
                secret=meeting.secret,
                settings=overrides,
            )
        finally:
            meeting.close()
        _meter = Meter(_job)
        _settings = given
        joined.tell(worker.job, worker.rank)
        if worker.source == "single":
            _say_alone()
        forget_names()
        for learn in learn_job:
            learn(_job)
        _leave_with_forked_child()
    return True


def warn_if_failed() -> None:
    """Warns that `init` does nothing, if this process is in a job that has failed."""
    if _job is not None and (why := _job.failure()):
        _core.log_warning(
            "init() does nothing, because this process is in a job that has failed, until it calls "
            f"shutdown() ({why})"
        )


def _text_of_setting(name: str, value: Any) -> str:
    """Returns a setting as the text that an environment variable would have."""
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds():g}"
    if isinstance(value, (str, int, float)):
        return text_of(str(value), name)
    raise ConfigurationError(
        f"option {name} is {shown(value)}; it must be a number, a text, True or False"
    )


def _require_same(settings: dict[str, Any]) -> None:
    """Raises ConfigurationError, with the name, if a setting differs from the running job's."""
    if not settings:
        return
    rows = {row["name"]: row for row in _core.settings()}
    different = []
    for name, value in settings.items():
        if name not in rows:
            raise ConfigurationError(f"there is no option {name!r}; 'herring config' lists all")
        before = _settings.get(name, rows[name]["value"])
        text = _text_of_setting(name, value)
        # Values are compared instead of texts: 300 and 5m are the same, and so are True and on.
        asked, there = (named(name).parse(each, f"option {name}") for each in (text, before))
        if asked != there:
            different.append((f"{name}={text}", f"{name}={before}"))
    if different:
        asked, there = (", ".join(texts) for texts in zip(*different))
        raise ConfigurationError(
            f"init({asked}): this process is in a job already, with {there}; give settings with "
            "the first init(), or call shutdown() first"
        )


def _say_alone() -> None:
    """Warns once that this is a job of one worker, unless Python runs interactively."""
    global _told_alone
    if _told_alone or hasattr(sys, "ps1"):
        return
    _told_alone = True
    _core.log_warning(
        "no launcher has started this process, so it is a job of one worker, and nothing is "
        "averaged with others: start it with 'herring run -n N -- python ...', torchrun, mpirun or "
        "srun, or set HERRING_RANK=0 HERRING_SIZE=1 if one worker is intended"
    )


def shutdown() -> None:
    """Leaves the job; operations in flight fail with `ShutdownError`.

    If other ranks still use the server in this process, the call waits for them: for groups without
    this rank as long as they are in use, and at most 10 s without any traffic. Ctrl-C ends the
    wait. The call runs by itself when the interpreter exits, or a process that `multiprocessing`
    has forked; after an uncaught exception it waits for nobody. Without an earlier `init` it does
    nothing. If another thread is leaving the job, which waits for callbacks, this call returns at
    once, because a callback may make it; the interpreter's exit waits.
    """
    _leave(failed=False)


def leave_failed() -> None:
    """Leaves the job like `shutdown`, but waits only a moment for ranks that use its server."""
    _leave(failed=True)


def _leave(failed: bool) -> None:
    global _job, _meter
    with _lock:
        leaving, _job, _meter = _job, None, None
        if leaving is not None:
            _left.clear()
    for forget in forget_job:
        forget()
    if leaving is not None:
        try:
            with not_waited_for():
                leaving.shutdown(failed)
            logs.settle()
        finally:
            _left.set()


def _at_exit(failed: bool | None = None) -> None:
    # A daemon thread may be inside init(). end_starts() makes that call end soon; this function
    # does not wait for what the thread then does in Python.
    _core.end_starts()
    if _lock.acquire(timeout=_PATIENCE):
        _lock.release()
        _leave(failed=hasattr(sys, "last_value") if failed is None else failed)
        _left.wait(_LEAVING)


atexit.register(_at_exit)


def _leave_with_forked_child() -> None:
    """Lets a process that multiprocessing has forked leave at its end, which runs no atexit."""
    global _in_finalizers
    multiprocessing = sys.modules.get("multiprocessing")
    if _in_finalizers or multiprocessing is None or multiprocessing.parent_process() is None:
        return
    if multiprocessing.get_start_method(allow_none=True) != "spawn":
        util = importlib.import_module("multiprocessing.util")
        util.Finalize(None, _at_end_of_forked_child, exitpriority=_AFTER_CHILDREN)
        _in_finalizers = True


def _at_end_of_forked_child() -> None:
    # The process has an exception here if that ends it.
    error = sys.exc_info()[1]
    failed = error is not None and not isinstance(error, SystemExit)
    threading.Thread(target=_leave_after_threads, args=(failed,), name="herring-leave").start()


def _leave_after_threads(failed: bool) -> None:
    # The process waits for its threads only now, and for this one with them.
    ended_last = threading.main_thread(), threading.current_thread()
    while others := [t for t in threading.enumerate() if not (t.daemon or t in ended_last)]:
        others[0].join()
    _at_exit(failed)


_in_finalizers = False  # whether multiprocessing knows that this process is to leave


def _in_forked_child() -> None:
    # The engine's threads do not exist in the child. The child is not a member of the job and must
    # not run the parent's clean-up.
    global _job, _left, _in_finalizers
    _in_finalizers = False
    _left = threading.Event()
    _left.set()
    if _job is not None:
        # The job is kept until the process ends, because destroying it would wait for its threads.
        _core.keep_for_ever(_job)
        _forked.append(_job)
        _job = None


_forked: list[Any] = []
os.register_at_fork(after_in_child=_in_forked_child)


def job() -> _core.Job:
    """Returns the running job; raises ShutdownError if there is none."""
    current = _job
    if current is None:
        # The script may call Horovod's init() instead of Herring's.
        where = "in a forked child; only the parent takes part" if _forked else "call init()"
        raise ShutdownError(f"herring is not initialized in this process ({where})")
    return current


def is_elastic() -> bool:
    """Returns whether this process belongs to an elastic job, in which generations follow."""
    return bool(os.environ.get("HERRING_ELASTIC", "").strip())


def is_running(other: _core.Job) -> bool:
    """Returns whether this is the job that is running."""
    return _job is other


def require_running(owner: _core.Job, what: str) -> None:
    """Raises ShutdownError unless `what`, which was made in the job `owner`, can be used."""
    if _job is owner:
        return
    if _job is None and _forked:
        job()  # raises an error that says that this is a forked child
    raise ShutdownError(
        f"{what} belongs to a job that has ended; make it anew (wrap the model again)"
    )


def abort(reason: str) -> None:
    """Fails every pending and later operation on every rank with this reason; never hangs.

    Args:
      reason: The text that every rank's error shows.

    Raises:
      ConfigurationError: `reason` is empty.
      InvalidArgumentError: `reason` is not a text.
      ShutdownError: This process is not in a job.
    """
    if not text_of(reason, "reason"):
        raise ConfigurationError("abort() needs a reason: it is what every rank will read")
    job().abort(reason)


def is_initialized() -> bool:
    """Returns whether this process is in a job."""
    return _job is not None


def rank() -> int:
    """Returns this worker's rank, 0 to size() - 1."""
    return job().rank


def size() -> int:
    """Returns the number of workers in the job."""
    return job().size


def local_rank() -> int:
    """Returns this worker's rank on its node, 0 to local_size() - 1."""
    return job().local_rank


def local_size() -> int:
    """Returns the number of workers on this node."""
    return job().local_size


def node_rank() -> int:
    """Returns this node's number, 0 to num_nodes() - 1; nodes are ordered by lowest rank."""
    return job().node_rank


def num_nodes() -> int:
    """Returns the number of nodes, which are groups of workers that share a machine's memory."""
    return job().num_nodes


def start_timeline(path: str | os.PathLike[str]) -> None:
    """Begins to write a timeline of all ranks and servers, which rank 0 writes.

    The file is a Chrome trace for https://ui.perfetto.dev. It shows for each rank and server what
    it computed, combined in its node, sent and received, on one clock. ``HERRING_TIMELINE`` does
    the same from the start. Ranks other than 0 do nothing.

    Args:
      path: The file to write. Its folder must exist.

    Raises:
      ShutdownError: This process is not in a job.
      InvalidArgumentError: A timeline is being written already, or `path` is not a path.
      ConfigurationError: The file cannot be written, or the job is not observed
        (``HERRING_OBSERVE``).
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"start_timeline: path is {shown(path)}; it must be a text or a Path"
        )
    job().begin_timeline(text_of(os.fspath(path), "start_timeline: path"))


def stop_timeline() -> None:
    """Ends the timeline, if one is being written. Ranks other than 0 do nothing.

    Raises:
      ShutdownError: This process is not in a job.
    """
    job().end_timeline()


def write_flight_record(why: str = "the program asked for it") -> str:
    """Writes what all ranks and servers did last to a file, as happens when something fails.

    The file is written within a second, on the host of rank 0; ``herring flight FILE`` explains it.
    Ranks other than 0 do nothing.

    Args:
      why: A reason, which the file tells.

    Returns:
      The path of the file; an empty text on other ranks.

    Raises:
      ShutdownError: This process is not in a job.
      ConfigurationError: The job writes no records (``HERRING_FLIGHT_FOLDER`` is "off").
    """
    return job().write_record(text_of(why, "write_flight_record: why"))


class WorkerBytes(TypedDict):
    """Bytes on the wire, including headers."""

    bytes_sent: int
    bytes_received: int


class ServerBytes(WorkerBytes):
    """Bytes between this worker and one server.

    Attributes:
      name: The server's name in messages.
      dedicated: Whether it has a process of its own.
      weight: Its share of the data.
      retransmits: Segments that this worker's TCP has sent to it again.
      rtt: Seconds of a round trip, the longest of its connections; None if not known.
    """

    name: str
    dedicated: bool
    weight: float
    retransmits: int
    rtt: float | None


class Stats(WorkerBytes):
    """What `stats` returns; `bytes_sent` and `bytes_received` are those of all connections.

    Attributes:
      servers: The bytes of each server, as this worker sees them.
      workers: The bytes of algorithms that send messages between workers.
      credit_bytes: The bytes that a flow may have outstanding now.
      kept_bytes: The bytes kept for others, who may lack them when a server dies.
      wakeups: Wake-ups of the engine.
      gpu_sums: Completed all-reduces whose sums this worker's GPU computed
        (``algorithm="cuda-butterfly"``).
      gpu_peer_sums: Those of them for which this GPU read memory of another one of its node.
      late_seconds: How much later than the median rank this rank gives its gradients in a step, on
        average; 0 if it is rarely late. Rank 0 finds it in the latest 128 rounds.
      seconds: Where the time went, since the last call of `stats` and since `init`.
    """

    servers: list[ServerBytes]
    workers: WorkerBytes
    credit_bytes: int
    kept_bytes: int
    wakeups: int
    gpu_sums: int
    gpu_peer_sums: int
    late_seconds: float
    seconds: Seconds


def stats() -> Stats:
    """Returns counters of this worker since `init`, and where its time went.

    Returns:
      A dictionary with these keys. ``bytes_sent`` and ``bytes_received``: bytes on the wire between
      this worker and all other processes, including headers. ``servers``: a list with name,
      dedicated, weight, bytes_sent and bytes_received of each server, as this worker sees them,
      with retransmits (segments that TCP has sent again) and rtt (seconds of a round trip, or
      None). ``workers``: bytes_sent and bytes_received of algorithms that send messages between
      workers. ``credit_bytes``: bytes that a flow may have outstanding now. ``kept_bytes``: bytes
      of results that this worker keeps now for others, who may lack them when a server dies (0
      without ``HERRING_FAILOVER``). ``wakeups``: wake-ups of the engine. ``gpu_sums``: completed
      all-reduces whose sums this worker's GPU computed (``algorithm="cuda-butterfly"``).
      ``gpu_peer_sums``: those of them for which this GPU read memory of another GPU of its node.
      ``late_seconds``: how much later than the median rank this rank gives its gradients in a step;
      0 if it is rarely late. ``seconds``: a dictionary with the keys ``last`` (since the last call
      of `stats`) and ``total`` (since `init`). Each has the numbers ``rounds`` and ``calls`` that
      the program began, and seconds. ``seconds`` is the whole time. It consists of ``exposed``, in
      which a thread of the program waited for a result, and ``compute``, the rest. ``node_stage``,
      ``push`` and ``pull`` overlap with both. They say how long at least one buffer was in the node
      stage, on its way to servers, and awaited from there. They cover what the recorder still
      knows; ``missed`` counts what it has forgotten (it keeps 4,096 rounds, buffers and calls).

    Raises:
      ShutdownError: This process is not in a job.
    """
    running, meter = job(), _meter
    if meter is None:  # another thread has called shutdown() just now
        meter = Meter(running)
    return cast(Stats, {**running.stats(), "seconds": meter.read()})
