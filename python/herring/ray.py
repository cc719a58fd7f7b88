"""Ray Train with Herring: a `TorchConfig` whose process group is Herring's, with servers as actors.

    from herring.ray import HerringConfig

    trainer = ray.train.torch.TorchTrainer(
        train, torch_config=HerringConfig(servers=2), scaling_config=ScalingConfig(num_workers=2)
    )

See docs/torch-distributed.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Mapping
from typing import Any

from herring.base.units import counted
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous.detect import Rendezvous
from herring.rendezvous.endpoint import bind_any

try:
    import ray
    from ray.exceptions import RayError
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import _TorchBackend
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    from herring.base.parts import install_command

    message = f"herring.ray needs Ray Train: {install_command('ray')} ({error})"
    raise ImportError(message) from None

__all__ = ["HerringConfig"]

_STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_GOODBYE = 10.0  # seconds that servers have to end after their job has ended


@dataclasses.dataclass
class HerringConfig(TorchConfig):
    """The `torch_config` of a `TorchTrainer` whose workers form a process group of Herring.

    With `servers`, dedicated servers run as actors for as long as the workers do. Without
    `servers`, workers on several nodes start colocated servers themselves.

    Attributes:
      backend: "herring", or a backend for each kind of device, such as "cpu:herring,cuda:nccl".
      servers: The number of dedicated servers. They are placed before training begins.
      server_resources: The amount of each Ray resource that is reserved for each server. A custom
        resource keeps servers on the nodes that have this resource, away from workers.
      placement: "SPREAD" puts servers on different nodes if there are enough nodes, and
        "STRICT_SPREAD" requires it. "PACK" and "STRICT_PACK" put servers together.
      placement_timeout_s: Seconds that the cluster has to place the servers, and again to start
        them.

    Raises:
      ConfigurationError: An attribute has a value that is not allowed.
    """

    backend: str | None = "herring"
    servers: int = 0
    server_resources: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"CPU": 1})
    placement: str = "SPREAD"
    placement_timeout_s: float = 100.0

    def __post_init__(self) -> None:
        names = [part.split(":")[-1] for part in (self.backend or "").split(",")]
        if "herring" not in names:
            raise ConfigurationError(
                f"backend is {self.backend!r}; it must be 'herring', or name it for a kind of "
                "devices, such as 'cpu:herring,cuda:nccl'"
            )
        if type(self.servers) is not int or self.servers < 0:
            raise ConfigurationError(
                f"servers is {self.servers!r}; it must be an integer of at least 0"
            )
        if self.placement not in _STRATEGIES:
            raise ConfigurationError(
                f"placement is {self.placement!r}; it must be one of {', '.join(_STRATEGIES)}"
            )
        amounts = dict(self.server_resources)
        if not amounts or not all(amount > 0 for amount in amounts.values()):
            raise ConfigurationError(
                f"server_resources is {amounts}; it must name at least one resource of Ray, such "
                "as 'CPU', each with an amount above 0"
            )
        if not self.placement_timeout_s > 0:
            raise ConfigurationError(
                f"placement_timeout_s is {self.placement_timeout_s}; it must be above 0 seconds"
            )

    @property
    def backend_cls(self) -> type[_HerringBackend]:
        """The class that Ray Train starts on the workers."""
        return _HerringBackend

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes, as Ray shows them."""
        return {**super().to_dict(), "servers": self.servers, "placement": self.placement}


class _HerringBackend(_TorchBackend):
    """Ray's torch backend with Herring's servers around it. It lives in the controller of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Any = None
        self._servers: list[Any] = []
        self._served: list[Any] = []

    def on_start(self, worker_group: Any, backend_config: HerringConfig) -> None:
        self._end(0.0)  # the servers of an attempt that failed
        variables = {}
        if backend_config.servers:
            address = worker_group.execute_single(0, _listen)
            variables = {
                "HERRING_RENDEZVOUS": address,
                "HERRING_SERVERS": str(backend_config.servers),
                "HERRING_SECRET": secrets.token_hex(32),
            }
        try:
            if backend_config.servers:
                self._begin(backend_config, variables)
            worker_group.execute(_prepare, variables)
            super().on_start(worker_group, backend_config)
        except BaseException:
            self._end(0.0)
            raise

    def on_shutdown(self, worker_group: Any, backend_config: HerringConfig) -> None:
        try:
            super().on_shutdown(worker_group, backend_config)
        except BaseException:
            self._end(0.0)
            raise
        self._end(_GOODBYE)

    def _begin(self, config: HerringConfig, variables: Mapping[str, str]) -> None:
        amounts = dict(config.server_resources)
        self._place = placement_group([amounts] * config.servers, strategy=config.placement)
        limit = config.placement_timeout_s
        if not self._place.wait(limit):
            every, free = ray.cluster_resources(), ray.available_resources()
            there = ", ".join(
                f"{name}: {free.get(name, 0):g} free of {every.get(name, 0):g}" for name in amounts
            )
            raise TimeoutError(
                f"Ray has not placed {counted(config.servers, 'server')} with {amounts} each "
                f"({config.placement}) within {limit:g} s (placement_timeout_s). The cluster has "
                f"{there}: ask for fewer servers or resources, or add nodes"
            )
        more = dict(amounts)
        options = {"num_cpus": more.pop("CPU", 0), "num_gpus": more.pop("GPU", 0)}
        kind = ray.remote(_Server).options(
            **options,
            resources=more,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._place),
        )
        self._servers = [kind.remote() for _ in range(config.servers)]
        ready = [server.prepare.remote(dict(variables)) for server in self._servers]
        _, missing = ray.wait(ready, num_returns=len(ready), timeout=limit)
        if missing:
            raise TimeoutError(
                f"{len(missing)} of {counted(config.servers, 'server')} did not start within "
                f"{limit:g} s (placement_timeout_s) after Ray placed them"
            )
        ray.get(ready)
        self._served = [server.serve.remote() for server in self._servers]

    def _end(self, patience: float) -> None:
        """Ends the servers. They first have `patience` seconds to end with their job."""
        if self._served and patience:
            with contextlib.suppress(RayError):
                ray.wait(self._served, num_returns=len(self._served), timeout=patience)
        for server in self._servers:
            with contextlib.suppress(RayError):
                ray.kill(server)
        if self._place is not None:
            with contextlib.suppress(RayError):
                remove_placement_group(self._place)
        self._place, self._servers, self._served = None, [], []


class _Server:
    """The actor that runs `herring server`."""

    def prepare(self, variables: Mapping[str, str]) -> None:
        os.environ.update(variables)

    def serve(self) -> None:
        from herring.launch.server import run_server

        run_server()


def _listen() -> str:
    """Opens the job's rendezvous port on rank 0, so that no other process can take the port."""
    host = ray.util.get_node_ip_address()
    listener = bind_any(host, os.environ)
    address = Rendezvous("address", host, listener.getsockname()[1]).address
    os.environ["HERRING_RENDEZVOUS_FD"] = str(listener.detach())
    return address


def _prepare(variables: Mapping[str, str]) -> None:
    """Registers the backend with torch on each worker, and says where the job meets."""
    import herring.torch  # noqa: F401

    os.environ.update(variables)
