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

from herring.base import pickling
from herring.errors import HerringError, InvalidArgumentError
from herring.horovod.common.exceptions import NotSupportedError

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

    Arguments that would change the number of processes, or name other machines, must be None. Other
    arguments that are not described below have no effect; `np`, `min_np` and `max_np` are older
    names of `num_proc`, `min_num_proc` and `max_num_proc`.

    Args:
      func: the function to call. It is sent with cloudpickle if that is installed, else with
        pickle, which does not support lambdas and functions of the script itself.
      args: positional arguments of the function.
      kwargs: keyword arguments of the function.
      num_proc: number of processes of the job.
      min_num_proc: must be None, because the job keeps its processes. `herring run --elastic` has
        options for elastic jobs.
      hosts: None, or this machine, for example "localhost:4".
      start_timeout: seconds in which all processes must have started.
      output_filename: folder for the output of each process.
      network_interface: name of the network interface to use.
      network_interfaces: a list with the name of the network interface to use.
      executable: path of the Python interpreter for the processes; None uses the current one.

    Returns:
      A list with the function's result in each process, in rank order.

    Raises:
      NotSupportedError: `hosts` names other machines, or an argument would change the number of
        processes.
      InvalidArgumentError: the function or one of its arguments cannot be pickled.
      HerringError: a process failed; its output says why.
    """
    elastic = {
        "min_num_proc": (min_num_proc or min_np, "--min-np"),
        "max_num_proc": (max_num_proc or max_np, "--max-np"),
        "slots": (slots, "--slots-per-host"),
        "reset_limit": (reset_limit, "--reset-limit"),
        "cooldown_range": (cooldown_range, "--restarts"),
        "host_discovery_script": (host_discovery_script, "--host-discovery-script"),
    }
    for name, (value, option) in elastic.items():
        if value is not None:
            raise NotSupportedError(
                f"horovod.run({name}={value!r}): its jobs keep the processes that they start with; "
                "for an elastic job put the function into a script, and start that with "
                f"'herring run --elastic --horovod', which has {option}"
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
            [sys.executable, "-m", "herring.command.cli", "run", *options, "--", *command],
            check=False,
        ).returncode
        if status != 0:
            raise HerringError(
                f"horovod.run: a process of the job failed (exit status {status}); its output "
                "says why"
            )
        return [
            pickling.loads(Path(folder, str(rank)).read_bytes()) for rank in range(np or num_proc)
        ]


def _pickled(func: Any, call: Any) -> bytes:
    try:
        if importlib.util.find_spec("cloudpickle") is not None:
            return pickling.dumps_by_value(call)
        if getattr(func, "__module__", None) == "__main__":
            raise InvalidArgumentError(
                f"horovod.run: {func!r} is defined in the script itself; install cloudpickle, or "
                "move the function into a module that the processes of the job can import"
            )
        return pickling.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"horovod.run: {func!r} or one of its arguments cannot be pickled: {error}"
        ) from error
