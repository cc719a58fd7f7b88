"""Joins and leaves the job, and answers questions about ranks and about the library's build."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import herring
from herring import _core
from herring.arrays import runtime
from herring.arrays.objects import check_same
from herring.elastic import running
from herring.errors import InvalidArgumentError
from herring.horovod.common import process_sets as sets
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import NotInitializedError, NotSupportedError
from herring.launch.horovod_settings import TIMELINE, read_variables

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
]


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[sets.ProcessSet] | str | None = None,
    *,
    joined_as_zeros: bool = True,
) -> None:
    """Joins the job that the environment describes; a second call does nothing.

    As in Horovod, a call in a job that has failed does nothing either: call `shutdown` first.

    In an elastic job, `hvd.elastic.run` joins the later generations in the same way.

    Args:
      comm: None, or the list of all ranks. Use process sets for a part of the ranks.
      process_sets: a list of `ProcessSet` objects to register, the same on all ranks. "dynamic" and
        None register none. `add_process_set` works in all cases.
      joined_as_zeros: whether averages count ranks that have called `join`, with zeros, as in
        Horovod. False divides by the number of ranks that are left. The same on all ranks.

    Raises:
      NotSupportedError: `comm` is an MPI communicator, or does not list all ranks.
      InvalidArgumentError: a process set has invalid ranks, or the same ranks as another one.
      MismatchError: ranks pass different process sets, or another `joined_as_zeros`.
      ConfigurationError: the environment or a setting is missing, wrong or contradictory.
      AuthenticationError: the rendezvous does not know this job's secret.
      TimeoutError: some ranks did not come in time; the message lists them.
    """
    if herring.is_initialized() and sets.is_set_up():
        runtime.warn_if_failed()
        return
    wanted: list[sets.ProcessSet] = []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise InvalidArgumentError(
                f"process_sets is {process_sets!r}; it must be 'dynamic', a list of ProcessSet or "
                "None"
            )
    elif process_sets is not None:
        wanted = list(process_sets)

    enter = functools.partial(_enter, comm, wanted, joined_as_zeros)
    if herring.is_initialized():
        enter()
        return
    settings, lines = _asked_for()
    if runtime.is_elastic():
        global _join_next
        settings.pop("connect_timeout", None)  # a generation begins when its members are there
        _join_next = functools.partial(running.join, settings, enter)
        _join_next()
    else:
        herring.init(**settings)
        enter()
    if herring.rank() == 0:
        for line in lines:
            _core.log_warning(line)


def _enter(
    comm: Sequence[int] | None, wanted: Sequence[sets.ProcessSet], joined_as_zeros: bool
) -> None:
    if comm is not None and (
        not isinstance(comm, (list, tuple, range)) or sorted(comm) != list(range(herring.size()))
    ):
        raise NotSupportedError(
            f"init(comm={comm!r}): a job has all ranks of its launcher; for a part of them use "
            "init(process_sets=[hvd.ProcessSet([...])]) and process_set="
        )
    check_same("joined_as_zeros of init()", joined_as_zeros, name="horovod.init.joined")
    rounds.count_joined(joined_as_zeros)
    sets.set_up(wanted)


_join_next: Callable[[], None] | None = None


def join_next() -> None:
    """Joins the next generation of an elastic job as `init` has joined the first one."""
    if _join_next is None:
        init()
    else:
        _join_next()


def _asked_for() -> tuple[dict[str, Any], list[str]]:
    """Returns the settings that Horovod's environment variables request, and lines about others."""
    settings, lines = read_variables(os.environ)
    trace = os.environ.get(TIMELINE, "").strip()
    # With DYNAMIC, the script calls start_timeline().
    if trace and trace.upper() != "DYNAMIC" and not os.environ.get("HERRING_TIMELINE"):
        settings["timeline"] = trace
    return settings, lines


def shutdown() -> None:
    """Leaves the job. Operations in flight fail; `init` may be called again afterwards."""
    herring.shutdown()


def is_initialized() -> bool:
    """Returns whether this process is in a job."""
    return herring.is_initialized()


def _in_job(function: Callable[[], int]) -> int:
    if not herring.is_initialized():
        raise NotInitializedError("Horovod has not been initialized in this process: hvd.init()")
    return function()


def rank() -> int:
    """Returns this worker's rank, from 0 to size() - 1."""
    return _in_job(herring.rank)


def size() -> int:
    """Returns the number of workers in the job."""
    return _in_job(herring.size)


def local_rank() -> int:
    """Returns this worker's rank on its node, from 0 to local_size() - 1."""
    return _in_job(herring.local_rank)


def local_size() -> int:
    """Returns the number of workers on this node."""
    return _in_job(herring.local_size)


def _nodes_across() -> list[int]:
    """Returns the numbers of the nodes that have a worker with this local rank."""
    mine = local_rank()
    return [n for n in range(herring.num_nodes()) if len(herring.ranks_of_node(n)) > mine]


def cross_rank() -> int:
    """Returns this node's index among the nodes that have a worker with this local rank."""
    return _nodes_across().index(herring.node_rank())


def cross_size() -> int:
    """Returns the number of nodes that have a worker with this local rank."""
    return len(_nodes_across())


def is_homogeneous() -> bool:
    """Returns whether all nodes have the same number of workers."""
    _in_job(herring.size)
    return len({len(herring.ranks_of_node(n)) for n in range(herring.num_nodes())}) == 1


def _none_of(what: str) -> Callable[..., Any]:
    def answer(verbose: bool = False) -> bool:
        del verbose
        return False

    answer.__doc__ = f"Returns whether {what}: always False, as Herring has its own transport."
    return answer


mpi_threads_supported = _none_of("several threads may call MPI")
mpi_enabled = _none_of("MPI is used")
mpi_built = _none_of("MPI is compiled in")
gloo_enabled = _none_of("Gloo is used")
gloo_built = _none_of("Gloo is compiled in")
ddl_built = _none_of("DDL is compiled in")
ccl_built = _none_of("oneCCL is compiled in")
cuda_built = _none_of("CUDA operations are compiled in")
rocm_built = _none_of("ROCm operations are compiled in")


def nccl_built(verbose: bool = False) -> int:
    """Returns the version of NCCL that is compiled in: always 0, as Herring does not use NCCL."""
    del verbose
    return 0
