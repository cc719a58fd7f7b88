"""Adapts libraries to compare with: torch.distributed's Gloo and NCCL, MPI, and Horovod.

MPI is used through mpi4py, and Horovod through its module for PyTorch.

To the benchmark each library looks like Herring (``Communicator``), so that one loop with one clock
measures all of them.
"""

# ruff: noqa: D102 - Communicator describes the methods
from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from herring.base.parts import install_command
from herring.bench import pattern
from herring.bench.communicator import Communicator, Prepared
from herring.bench.gpus import Gpus
from herring.bench.libraries import ALGORITHMS, PEERS
from herring.errors import ConfigurationError, InvalidArgumentError
from herring_lab.emulate import mpi

__all__ = [
    "ALGORITHMS",
    "PEERS",
    "HorovodCommunicator",
    "MissingLibraryError",
    "MpiCommunicator",
    "TorchCommunicator",
    "missing",
    "open_peer",
    "start_horovod",
    "torch_rendezvous",
]


# What Horovod's module for PyTorch reduces in host memory.
_HOROVOD_DTYPES = ("float32", "float64", "float16", "int32", "int64")


class MissingLibraryError(ConfigurationError):
    """A library is not installed; the message names it and the command that installs it."""


def _torch_missing() -> str:
    return f"torch is not installed ({install_command('torch')})"


def _horovod_missing() -> str:
    spec = importlib.util.find_spec("horovod")
    for folder in (spec and spec.submodule_search_locations) or ():
        if any(pathlib.Path(folder, "torch").glob("mpi_lib_v2*.so")):
            return ""
    return "Horovod is not installed for PyTorch ('make peers' builds it into .venv-peers)"


def missing(peer: str) -> str:
    """Returns why a library cannot be measured here, and what to install; empty if it can.

    The function starts no job and loads nothing into this process.
    """
    if peer in mpi.MPIS:
        return mpi.missing(peer)
    if importlib.util.find_spec("torch") is None:
        return _torch_missing()
    if peer == "horovod":
        return _horovod_missing()
    if peer == "nccl" and not _has_gpu():
        return "NCCL needs GPUs, and nvidia-smi lists none here"
    return ""


def open_peer(peer: str, algorithm: str | None = None, gpus: Gpus | None = None) -> Communicator:
    """Starts one of `PEERS` on the ranks of this job.

    Args:
      peer: the library.
      algorithm: a key of ``ALGORITHMS[peer]``; None: the library chooses.
      gpus: the GPUs that hold the arrays, for a library of ``OF_TORCH``; NCCL needs them. None:
        arrays are in host memory.

    Raises:
      ConfigurationError: the library is not installed, the environment does not tell the ranks, or
        NCCL would have several ranks on one GPU.
    """
    if peer in mpi.MPIS:
        return MpiCommunicator(peer, algorithm)
    if peer == "horovod":
        return HorovodCommunicator(algorithm)
    return TorchCommunicator(peer, algorithm, gpus)


class TorchCommunicator:
    """Gloo or NCCL through ``torch.distributed``, on the ranks that the environment tells.

    The ranks meet at the rendezvous host, one port above Herring's. ``GLOO_SOCKET_IFNAME`` and
    ``NCCL_SOCKET_IFNAME`` choose the interface, as usual. Gloo has no average, so this class sums
    and then divides, as users of Gloo do. NCCL reduces arrays on GPUs. Gloo accepts these too,
    because torch copies them.
    """

    def __init__(
        self, backend: str = "gloo", algorithm: str | None = None, gpus: Gpus | None = None
    ) -> None:
        if importlib.util.find_spec("torch") is None:
            raise ConfigurationError(_torch_missing())
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        rank, size, method = torch_rendezvous(os.environ)
        self.name = backend
        self.rank = rank
        self.size = size
        self.local_size = int(os.environ.get("HERRING_LOCAL_SIZE", "1"))
        self.num_nodes = max(1, size // self.local_size)
        self._torch = torch
        self._dist = dist
        self._gpu = None if gpus is None else gpus.of(rank)
        self._device = torch.device("cpu") if self._gpu is None else self._gpu.device
        self._algorithm = algorithm
        meeting: dict[str, Any] = {"init_method": method}
        if backend == "nccl":
            if algorithm is not None:
                os.environ["NCCL_ALGO"] = ALGORITHMS["nccl"][algorithm]
            store, _, _ = next(dist.rendezvous(method, rank, size))
            require_own_gpus(store, rank, size, self._gpu.identity())
            meeting = {"store": dist.PrefixStore("nccl", store)}
        dist.init_process_group(backend, rank=rank, world_size=size, **meeting)

    def barrier(self) -> None:
        self._dist.barrier()
        self._wait()

    def allreduce(self, count: int, dtype: str, op: str) -> Prepared:
        elements = np.zeros(count, dtype=pattern.storage_dtype(dtype))
        host = self._torch.from_numpy(elements).view(getattr(self._torch, dtype))
        tensor = host.to(self._device)  # the same memory on the CPU
        reduce_op = self._dist.ReduceOp
        kind = {
            "sum": reduce_op.SUM,
            "average": reduce_op.SUM,
            "min": reduce_op.MIN,
            "max": reduce_op.MAX,
            "product": reduce_op.PRODUCT,
        }[op]
        allreduce, size = self._dist.all_reduce, self.size

        def run() -> None:
            allreduce(tensor, op=kind)
            if op == "average":
                tensor.div_(size)
            self._wait()

        if self._gpu is None:
            return Prepared(run, [elements])
        return Prepared(
            run, [elements], load=lambda: tensor.copy_(host), store=lambda: host.copy_(tensor)
        )

    def planned(self, counts: list[int], dtype: str, op: str) -> Prepared:
        raise InvalidArgumentError(f"{self.name} has no planned operation: compare with allreduce")

    variables = planned

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        own = self._torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))
        own = own.to(self._device if self.name == "nccl" else "cpu")
        parts = [self._torch.empty_like(own) for _ in range(self.size)]
        self._dist.all_gather(parts, own)
        return np.stack([part.cpu().numpy() for part in parts])

    def counters(self) -> tuple[int, int] | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "torch": self._torch.__version__,
            "algorithm": self._algorithm or f"{self.name}'s choice",
            "device": "cpu" if self._gpu is None else self._gpu.describe(),
        }

    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()

    def _wait(self) -> None:
        if self._gpu is not None:
            self._gpu.synchronize()


class MpiCommunicator:
    """MPICH or Open MPI through mpi4py, on the ranks that MPI's launcher has started.

    A program uses one MPI. ``MPI4PY_MPIABI`` tells mpi4py's wheel which one; an mpi4py that was
    built against one MPI works with that MPI only.
    """

    def __init__(self, name: str, algorithm: str | None = None) -> None:
        os.environ["MPI4PY_MPIABI"] = name
        if algorithm is not None:
            os.environ.update(_mpi_settings(name, ALGORITHMS[name][algorithm]))
        try:
            import mpi4py

            # MPICH 4.0 over UCX often hangs in MPI_Finalize, because ranks that are done no longer
            # answer ranks that still close connections. A rank that exits without it ends well.
            self._finalizes = mpi4py.rc.finalize = name != "mpich"
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigurationError(
                f"--peer {name}: {str(error).splitlines()[0]}: {install_command('mpi')} and "
                "the MPI itself; 'herring lab run --mpi' and 'herring study' find Debian's MPICH, "
                "elsewhere build mpi4py against it"
            ) from error
        library = MPI.Get_library_version().replace("\0", "").splitlines()[0]
        found = {"MPICH": "mpich", "Open MPI": "openmpi"}.get(MPI.get_vendor()[0], "another MPI")
        if found != name:
            raise ConfigurationError(f"--peer {name}: mpi4py is built for {found} here: {library}")
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self._algorithm = algorithm
        self._library = " ".join(library.split())
        self.name = name
        self.rank: int = self._world.rank
        self.size: int = self._world.size
        node = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_size: int = node.size
        self.num_nodes: int = self._world.allreduce(int(node.rank == 0))
        node.Free()
        started = int(os.environ.get("HERRING_SIZE", self.size))
        if started != self.size:
            raise ConfigurationError(
                f"--peer {name}: the job has {started} workers, but MPI knows {self.size}: start "
                f"it with the launcher of {name} ('herring lab run --mpi {name}' does)"
            )

    def barrier(self) -> None:
        self._world.Barrier()

    def allreduce(self, count: int, dtype: str, op: str) -> Prepared:
        if dtype in ("float16", "bfloat16"):
            raise InvalidArgumentError(f"{self.name} does not reduce {dtype}: MPI has no such type")
        elements = np.zeros(count, dtype=pattern.storage_dtype(dtype))
        MPI, truth = self._mpi, dtype == "bool"  # noqa: N806 - mpi4py's name
        kind = {
            "sum": MPI.LOR if truth else MPI.SUM,
            "average": MPI.SUM,
            "min": MPI.LAND if truth else MPI.MIN,
            "max": MPI.LOR if truth else MPI.MAX,
            "product": MPI.LAND if truth else MPI.PROD,
        }[op]
        allreduce, in_place, size = self._world.Allreduce, MPI.IN_PLACE, self.size

        def run() -> None:
            allreduce(in_place, elements, kind)
            if op == "average":
                np.divide(elements, size, out=elements)

        return Prepared(run, [elements])

    def planned(self, counts: list[int], dtype: str, op: str) -> Prepared:
        raise InvalidArgumentError(f"{self.name} has no planned operation: compare with allreduce")

    variables = planned

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        own = np.ascontiguousarray(numbers, dtype=np.float64)
        rows = np.empty((self.size, own.size))
        self._world.Allgather(own, rows)
        return rows

    def counters(self) -> tuple[int, int] | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"mpi": self._library, "algorithm": self._algorithm or f"{self.name}'s choice"}

    def close(self) -> None:
        self._world.Barrier()
        if self._finalizes:
            self._mpi.Finalize()


class HorovodCommunicator:
    """Horovod through ``horovod.torch``, on the ranks that the environment tells.

    Args:
      algorithm: a key of ``ALGORITHMS["horovod"]``, which names what carries the messages; None:
        Gloo. With ``mpi``, Open MPI's launcher must have started the ranks.

    A barrier and an all-reduce each wait for a cycle of Horovod's background thread, by default
    1 ms.
    """

    name = "horovod"

    def __init__(self, algorithm: str | None = None) -> None:
        self._carrier = algorithm or "gloo"
        self._horovod, self._keep = start_horovod(self._carrier)
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self.rank: int = self._horovod.rank()
        self.size: int = self._horovod.size()
        self.local_size: int = self._horovod.local_size()
        self.num_nodes: int = self._horovod.cross_size()

    def barrier(self) -> None:
        self._horovod.barrier()

    def allreduce(self, count: int, dtype: str, op: str) -> Prepared:
        if dtype not in _HOROVOD_DTYPES:
            raise InvalidArgumentError(
                f"horovod does not reduce {dtype}, only {', '.join(_HOROVOD_DTYPES)}"
            )
        elements = np.zeros(count, dtype=pattern.storage_dtype(dtype))
        tensor = self._torch.from_numpy(elements)
        horovod = self._horovod
        kind = {
            "sum": horovod.Sum,
            "average": horovod.Average,
            "min": horovod.Min,
            "max": horovod.Max,
            "product": horovod.Product,
        }[op]
        name = f"bench.{op}.{dtype}.{count}"  # Horovod caches what it has agreed on for a name

        def run() -> None:
            horovod.allreduce_(tensor, op=kind, name=name)

        return Prepared(run, [elements])

    def planned(self, counts: list[int], dtype: str, op: str) -> Prepared:
        raise InvalidArgumentError(f"{self.name} has no planned operation: compare with allreduce")

    variables = planned

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        own = self._torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))
        return self._horovod.allgather(own, name="bench.gather").numpy().reshape(self.size, -1)

    def counters(self) -> tuple[int, int] | None:
        return None

    def describe(self) -> dict[str, Any]:
        import horovod

        return {
            "horovod": horovod.__version__,
            "torch": self._torch.__version__,
            "algorithm": self._carrier,
        }

    def close(self) -> None:
        self._horovod.barrier()
        self._horovod.shutdown()


def start_horovod(carrier: str = "gloo") -> tuple[Any, Any]:
    """Starts Horovod on the ranks that the environment tells.

    With Gloo, ranks need Horovod's rendezvous server. Rank 0 starts it, and tells its port through
    torch's store, where the ranks of Gloo meet as well.

    Args:
      carrier: ``gloo``, or ``mpi`` if Open MPI's launcher has started the ranks.

    Returns:
      The module ``horovod.torch``, and an object that must live until the job ends.

    Raises:
      ConfigurationError: Horovod is not installed, the environment does not tell the ranks, or MPI
        knows fewer ranks than the job has.
    """
    reason = missing("horovod")
    if reason:
        raise ConfigurationError(f"--peer horovod: {reason}")
    os.environ.update({"HOROVOD_CONTROLLER": carrier, "HOROVOD_CPU_OPERATIONS": carrier})
    keep = _meet_for_gloo() if carrier == "gloo" else None
    import horovod.torch

    horovod.torch.init()
    started = int(os.environ.get("HERRING_SIZE", horovod.torch.size()))
    if started != horovod.torch.size():
        raise ConfigurationError(
            f"--peer horovod: the job has {started} workers, but MPI knows "
            f"{horovod.torch.size()}: start it with the launcher of Open MPI "
            "('herring lab run --mpi openmpi' does)"
        )
    return horovod.torch, keep


def _meet_for_gloo() -> tuple[Any, Any]:
    """Sets the variables that Horovod's own launcher would set, and starts its server on rank 0.

    Returns:
      Torch's store and, on rank 0, the server.
    """
    import torch.distributed as dist
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    rank, size, method = torch_rendezvous(os.environ)
    local = [
        int(os.environ.get(f"HERRING_{name}", os.environ.get(other, default)))
        for name, other, default in (
            ("LOCAL_RANK", "LOCAL_RANK", "0"),
            ("LOCAL_SIZE", "LOCAL_WORLD_SIZE", "1"),
        )
    ]
    store, _, _ = next(dist.rendezvous(method, rank, size))
    store.set(f"horovod/{rank}", " ".join(map(str, local)))
    places = [
        tuple(map(int, store.get(f"horovod/{other}").decode().split())) for other in range(size)
    ]
    slots = [
        SlotInfo(
            # Local ranks of a node stand in a block that begins with local rank 0.
            hostname=f"node{sum(before == 0 for before, _ in places[: other + 1])}",
            rank=other,
            local_rank=local_rank,
            cross_rank=sum(before == local_rank for before, _ in places[:other]),
            size=size,
            local_size=local_size,
            cross_size=sum(any_rank == local_rank for any_rank, _ in places),
        )
        for other, (local_rank, local_size) in enumerate(places)
    ]
    server = None
    if rank == 0:
        server = RendezvousServer()
        port = server.start()
        server.init(slots)
        store.set("horovod/port", str(port))
    own = slots[rank]
    host = urllib.parse.urlsplit(method).hostname or os.environ["MASTER_ADDR"]
    os.environ.update(
        {
            "HOROVOD_HOSTNAME": own.hostname,
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(size),
            "HOROVOD_LOCAL_RANK": str(own.local_rank),
            "HOROVOD_LOCAL_SIZE": str(own.local_size),
            "HOROVOD_CROSS_RANK": str(own.cross_rank),
            "HOROVOD_CROSS_SIZE": str(own.cross_size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": store.get("horovod/port").decode(),
        }
    )
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or ("lo" if own.local_size == size else "")
    if interface:
        os.environ.setdefault("HOROVOD_GLOO_IFACE", interface)
    return store, server


def torch_rendezvous(environ: Mapping[str, str]) -> tuple[int, int, str]:
    """Returns rank, size and torch's ``init_method`` from environment variables.

    Raises:
      ConfigurationError: the variables of Herring and those of torchrun are both missing.
    """
    if "HERRING_RANK" in environ and "HERRING_RENDEZVOUS" in environ:
        host, _, port = environ["HERRING_RENDEZVOUS"].rpartition(":")
        # `herring run` keeps a port free for torch; without it, the next port must be free.
        store = int(environ.get("MASTER_PORT", int(port) + 1))
        method = f"tcp://{host}:{store}"
        return int(environ["HERRING_RANK"]), int(environ["HERRING_SIZE"]), method
    if "RANK" in environ and "MASTER_ADDR" in environ:
        return int(environ["RANK"]), int(environ["WORLD_SIZE"]), "env://"
    raise ConfigurationError(
        "--peer gloo, horovod and nccl need HERRING_RENDEZVOUS, HERRING_RANK and HERRING_SIZE"
        " (herring run sets them), or torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )


def require_own_gpus(store: Any, rank: int, size: int, gpu: str) -> None:
    """Checks that every rank has a GPU of its own, by exchanging the GPUs' identities.

    Args:
      store: torch's store, which all ranks share.
      rank: this rank.
      size: the number of ranks.
      gpu: the identity of this rank's GPU, unique in the job; empty: unknown.

    Raises:
      ConfigurationError: two ranks have the same GPU. All ranks raise this, so that none of them
        waits in NCCL.
    """
    store.set(f"gpu/{rank}", gpu or f"that of rank {rank}")
    ranks: dict[str, list[int]] = {}
    for other in range(size):
        ranks.setdefault(store.get(f"gpu/{other}").decode(), []).append(other)
    shared = {one: several for one, several in ranks.items() if len(several) > 1}
    if not shared:
        return
    store.set(f"gpu/{rank}/read", "")
    for other in range(size if rank == 0 else 0):  # rank 0 may host the store, so it leaves last
        store.get(f"gpu/{other}/read")
    one, several = next(iter(shared.items()))
    raise ConfigurationError(
        f"--peer nccl: ranks {', '.join(map(str, several))} would share the GPU {one}, and NCCL "
        "takes one rank on each; start no more workers on a host than it has GPUs, or measure "
        "--peer gloo"
    )


def end_process(status: int) -> NoReturn:
    """Ends this process without finalizing Python, after torch's DistributedDataParallel over Gloo.

    torch then keeps Gloo's threads beyond ``destroy_process_group``. If such a thread drops its
    last Python object while the interpreter is being finalized, the process aborts although its
    work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _mpi_settings(name: str, value: str) -> dict[str, str]:
    if name == "mpich":
        return {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": value}
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": value,
    }


def _has_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout
