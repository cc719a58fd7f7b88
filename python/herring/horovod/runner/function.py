"""`horovod.run`: calls a function in every process of a new job."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from herring.errors import HerringError, InvalidArgumentError
from herring.horovod.common.exceptions import NotSupportedError

__all__ = ["run"]

_THIS_MACHINE = ("localhost", "127.0.0.1")


def run(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Starts a job on this machine that calls a function in each of its processes.

    Args:
      func: what is called. It is sent by pickle, or by cloudpickle where that is installed, which
        also takes lambdas and functions of the script.
      args: what it is called with.
      kwargs: keywords that it is called with.
      num_proc: processes of the job.
      min_num_proc: None: a job keeps its processes.
      max_num_proc: None.
      slots: None.
      reset_limit: None.
      cooldown_range: None.
      hosts: None, or this machine: "localhost:4".
      hostfile: None.
      host_discovery_script: None.
      start_timeout: seconds that processes may take to meet.
      ssh_port: no meaning.
      ssh_identity_file: no meaning.
      disable_cache: no meaning.
      output_filename: a folder for what each process prints.
      verbose: no meaning.
      use_gloo: no meaning.
      use_mpi: no meaning.
      mpi_args: no meaning.
      network_interface: as `network_interfaces`, of one.
      network_interfaces: the interface that is used; one.
      executable: the Python that runs the processes; None: this one.
      np: older than `num_proc`.
      min_np: older than `min_num_proc`.
      max_np: older than `max_num_proc`.

    Returns:
      What the function has returned in each process, in the order of ranks.

    Raises:
      NotSupportedError: other hosts, or a job whose processes change.
      InvalidArgumentError: the function, or an argument of it, cannot be pickled.
      HerringError: a process has failed; its output says why.
    """
    elastic = {
        "min_num_proc": min_num_proc or min_np,
        "max_num_proc": max_num_proc or max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    for name, value in elastic.items():
        if value is not None:
            raise NotSupportedError(
                f"horovod.run({name}={value!r}): a job keeps the processes it has started with; "
                "leave the argument out, save checkpoints, and start the job again"
            )
    elsewhere = [h for h in (hosts or "").split(",") if h.partition(":")[0] not in _THIS_MACHINE]
    if hostfile is not None or (hosts and elsewhere):
        raise NotSupportedError(
            "horovod.run() starts processes on this machine only; leave hosts and hostfile out, or "
            "start the script with 'herring run -H host1:4,host2:4 --horovod -- python ...'"
        )
    options = ["-n", str(np or num_proc), "--horovod"]
    if start_timeout is not None:
        options += ["--start-timeout", str(start_timeout)]
    if output_filename is not None:
        options += ["--output-filename", output_filename]
    interfaces = list(network_interfaces or filter(None, [network_interface]))
    if interfaces:
        options += ["--network-interface", ",".join(interfaces)]
    with tempfile.TemporaryDirectory(prefix="herring-run-") as folder:
        call = Path(folder, "call")
        call.write_bytes(_pickled(func, (func, args, kwargs or {})))
        command = [executable or sys.executable, "-m", "herring.horovod.runner.call", folder]
        status = subprocess.run(
            [sys.executable, "-m", "herring.launch.cli", "run", *options, "--", *command],
            check=False,
        ).returncode
        if status != 0:
            raise HerringError(
                f"horovod.run: a process of the job has failed (exit status {status}); what it has "
                "printed says why"
            )
        return [
            pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(np or num_proc)
        ]


def _pickled(func: Any, call: Any) -> bytes:
    try:
        if importlib.util.find_spec("cloudpickle") is not None:
            import cloudpickle

            return bytes(cloudpickle.dumps(call))
        if getattr(func, "__module__", None) == "__main__":
            raise InvalidArgumentError(
                f"horovod.run: {func!r} is defined in the script itself; install cloudpickle, or "
                "move the function into a module that the processes of the job can import"
            )
        return pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"horovod.run: {func!r} or one of its arguments cannot be pickled: {error}"
        ) from error
