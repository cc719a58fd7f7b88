"""The life of this process in a job: init, shutdown, who am I.

One job at a time per process. After `shutdown` another `init` may follow.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herring import _core
from herring.arrays.apart import not_waited_for
from herring.arrays.arguments import shown, text_of
from herring.arrays.names import forget_names
from herring.errors import ConfigurationError, ShutdownError
from herring.rendezvous import joined
from herring.rendezvous.detect import WorkerEnvironment, detect
from herring.rendezvous.meet import Meeting, meet
from herring.rendezvous.settings import named, value_of, variables_of

__all__ = [
    "abort",
    "init",
    "is_initialized",
    "job",
    "local_rank",
    "local_size",
    "node_rank",
    "num_nodes",
    "rank",
    "shutdown",
    "size",
    "start",
    "stats",
]

_PATIENCE = 5.0  # seconds for which the end of the process waits for a thread that is in init()

_lock = threading.Lock()
_job: _core.Job | None = None
_settings: dict[str, str] = {}  # that the running job was started with, beside the environment's
_told_alone = False
learn_job: list[Callable[[_core.Job], None]] = []  # called when one begins
forget_job: list[Callable[[], None]] = []  # called when a job ends: who keeps something of it


def host_identity() -> str:
    """What tells this host from others: boot id, host name and network namespace.

    ``HERRING_HOST_ID`` overrides it. Workers with the same identity form a node.
    """
    if given := value_of(os.environ, "HERRING_HOST_ID"):
        return str(given)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = "net"
    return f"{boot}/{socket.gethostname()}/{namespace}"


def init(**settings: Any) -> None:
    """Joins the job that the environment describes; a second call does nothing.

    Ranks are detected in this order: ``HERRING_*``, torchrun, Open MPI, PMIx or PMI, Slurm; without
    any of them this process is a job of one, and a script says so on its standard error
    (``HERRING_RANK=0 HERRING_SIZE=1`` says that this is meant). Blocks until every rank and
    dedicated server is there.

    Args:
      **settings: override settings by name (see ``herring config``), for example
        ``init(timeout=600, flows=4)``. What all ranks share (segment and frame size, credit,
        flows, proxies) is taken from rank 0.

    Raises:
      ConfigurationError: the environment or a setting is missing, wrong or contradictory; ranks
        disagree about the job; the rendezvous cannot be bound; this process has joined the job
        with other settings before.
      AuthenticationError: the rendezvous does not know this job's secret.
      TimeoutError: not everybody came in time; the message lists who is missing.
    """

    def met(worker: WorkerEnvironment, patience: float, first_reminder: float) -> Meeting:
        return meet(worker, os.environ, patience, first_reminder)

    start(lambda: detect(os.environ), met, settings)


def start(
    who: Callable[[], WorkerEnvironment],
    meet_others: Callable[[WorkerEnvironment, float, float], Meeting],
    settings: dict[str, Any],
) -> bool:
    """Joins a job: what `init` does, whoever says which one.

    Args:
      who: tells who this worker is.
      meet_others: called with the worker, the seconds that it may take, and those after which it
        first says what it waits for; returns where to register.
      settings: as of `init`.

    Returns:
      False: this process is in a job already, and nothing was done.

    Raises:
      ConfigurationError, AuthenticationError, TimeoutError: as `init`.
    """
    global _job, _settings
    with _lock:
        # Who a worker is comes from its launcher, so that one script runs under all of them.
        outside = variables_of("launcher", "environment")
        misplaced = sorted(name for name in settings if f"HERRING_{name.upper()}" in outside)
        if misplaced:
            raise ConfigurationError(
                f"init() does not take {', '.join(misplaced)}: set the environment variable "
                f"HERRING_{misplaced[0].upper()}, or start with 'herring run', torchrun or mpirun"
            )
        if _job is not None:
            _require_same(settings)
            return False
        overrides = {name: _text_of_setting(name, value) for name, value in settings.items()}
        given = dict(overrides)
        worker = who()
        with contextlib.suppress(ConfigurationError):  # of Job.start, which tells the others too
            for text in _core.setting_warnings():
                _core.log_warning(text)
        patience, first_reminder, right = _core.start_up_times(overrides)
        deadline = time.monotonic() + patience
        meeting = meet_others(worker, patience, first_reminder)
        # Finding the others and meeting them have one time-out together. One that is not allowed is
        # left for the core to refuse.
        if right:
            overrides["connect_timeout"] = f"{max(deadline - time.monotonic(), 0.5):.3f}"
        try:
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
        _settings = given
        joined.tell(worker.job, worker.rank)
        if worker.source == "single":
            _say_alone()
        forget_names()
        for learn in learn_job:
            learn(_job)
    return True


def _text_of_setting(name: str, value: Any) -> str:
    """A setting as the environment would have it."""
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds():g}"
    if isinstance(value, (str, int, float)):
        return text_of(str(value), name)
    raise ConfigurationError(
        f"option {name} is {shown(value)}; it must be a number, a text, True or False"
    )


def _require_same(settings: dict[str, Any]) -> None:
    """Refuses settings other than those that the running job has.

    Raises:
      ConfigurationError: names those that differ.
    """
    if not settings:
        return
    rows = {row["name"]: row for row in _core.settings()}
    different = []
    for name, value in settings.items():
        if name not in rows:
            raise ConfigurationError(f"there is no option {name!r}; 'herring config' lists all")
        before = _settings.get(name, rows[name]["value"])
        text = _text_of_setting(name, value)
        # By value: 300 and 5m are the same, and True and on.
        asked, there = (named(name).parse(each, f"option {name}") for each in (text, before))
        if asked != there:
            different.append((f"{name}={text}", f"{name}={before}"))
    if different:
        asked, there = (", ".join(texts) for texts in zip(*different))
        raise ConfigurationError(
            f"init({asked}): this process is in a job already, with {there}; give settings with "
            "the first init(), or call shutdown() before"
        )


def _say_alone() -> None:
    """Says once that this is a job of one, unless a person sits at the prompt."""
    global _told_alone
    if _told_alone or hasattr(sys, "ps1"):
        return
    _told_alone = True
    _core.log_warning(
        "no launcher has started this process, so it is a job of one worker, and nothing is "
        "averaged with others: start it with 'herring run -n N -- python ...', torchrun, mpirun or "
        "srun (HERRING_RANK=0 HERRING_SIZE=1 says that one worker is meant)"
    )


def shutdown() -> None:
    """Leaves the job; bounded in time. Operations in flight fail with `ShutdownError`.

    Runs by itself at the interpreter's exit. Without `init` it does nothing.
    """
    global _job
    with _lock:
        leaving, _job = _job, None
    for forget in forget_job:
        forget()
    if leaving is not None:
        with not_waited_for():
            leaving.shutdown()


def _at_exit() -> None:
    # A daemon thread may be in init(), which ends soon; what it does in Python is not waited for.
    _core.end_starts()
    if _lock.acquire(timeout=_PATIENCE):
        _lock.release()
        shutdown()


atexit.register(_at_exit)


def _in_forked_child() -> None:
    # The engine's threads did not come along: the child is no member of the job, and must not run
    # the parent's clean-up.
    global _job
    if _job is not None:
        # Also when the interpreter ends: destroying a job would wait for its threads.
        _core.keep_for_ever(_job)
        _forked.append(_job)
        _job = None


_forked: list[Any] = []
os.register_at_fork(after_in_child=_in_forked_child)


def job() -> _core.Job:
    """The running job.

    Raises:
      ShutdownError: there is none.
    """
    current = _job
    if current is None:
        where = (
            "in a forked child; only the parent takes part" if _forked else "call herring.init()"
        )
        raise ShutdownError(f"herring is not initialized in this process ({where})")
    return current


def require_running(owner: _core.Job, what: str) -> None:
    """Raises ShutdownError unless `what`, which was made in the job `owner`, can be used.

    Args:
      owner: the job in which it was made.
      what: how a message calls it.
    """
    if _job is owner:
        return
    if _job is None and _forked:
        job()  # says that this is a forked child
    raise ShutdownError(
        f"{what} belongs to a job that has ended; make it anew (wrap the model again)"
    )


def abort(reason: str) -> None:
    """Fails every pending and later operation on every rank, with this reason. Cannot hang.

    Raises:
      ConfigurationError: `reason` is empty.
      InvalidArgumentError: it is no text.
    """
    if not text_of(reason, "reason"):
        raise ConfigurationError("abort() needs a reason: it is what every rank will read")
    job().abort(reason)


def is_initialized() -> bool:
    """Whether this process is in a job."""
    return _job is not None


def rank() -> int:
    """This worker's rank, 0 to size() - 1."""
    return job().rank


def size() -> int:
    """Number of workers in the job."""
    return job().size


def local_rank() -> int:
    """This worker's rank on its node, 0 to local_size() - 1."""
    return job().local_rank


def local_size() -> int:
    """Number of workers on this node."""
    return job().local_size


def node_rank() -> int:
    """This node's number, 0 to num_nodes() - 1, by lowest rank."""
    return job().node_rank


def num_nodes() -> int:
    """Number of nodes: groups of workers that share a machine's memory."""
    return job().num_nodes


def stats() -> dict[str, Any]:
    """Counters of this worker since `init`.

    Returns:
      ``bytes_sent`` and ``bytes_received`` on the wire between this worker and all others, headers
      included; ``servers``: a list with name, dedicated, weight, bytes_sent and bytes_received per
      server (as this worker sees it); ``workers``: bytes_sent and bytes_received of algorithms that
      go by messages between workers; ``credit_bytes``: what a flow may have
      outstanding now; ``wakeups`` of the engine; ``gpu_sums``: completed all-reduces whose sums
      this worker's GPU took (``algorithm="cuda-butterfly"``).
    """
    return job().stats()
