"""Trains with Ray Train on two raylets of this machine, which act as two hosts, in several runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import ray
import ray.train
import ray.train.torch
import torch
from ray.cluster_utils import Cluster
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn import functional as F  # noqa: N812

import herring
from herring.ray import HerringConfig

OUT = Path(os.environ["OUT"])


def train(config: dict) -> None:
    """Trains on each worker; rank 1 dies once, after the second epoch, if `config` says so."""
    from common import network, samples

    rank = ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = ray.train.torch.prepare_data_loader(
        torch.utils.data.DataLoader(samples(), batch_size=4, shuffle=True)
    )
    first = 0
    if (kept := ray.train.get_checkpoint()) is not None:
        with kept.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        first = state["epoch"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(first, 3):
        loader.sampler.set_epoch(epoch)
        for index, (inputs, labels) in enumerate(loader):
            if config.get("dies") and (epoch, index, rank, first) == (2, 2, 1, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch}, Path(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"epoch": epoch}, checkpoint=checkpoint)
    served = herring.is_initialized()
    said = {
        "backend": torch.distributed.get_backend(),
        "nodes": herring.num_nodes() if served else 0,
        "servers": os.environ.get("HERRING_SERVERS", ""),
        "first": first,
    }
    folder = OUT / config["name"]
    torch.save(model.state_dict(), folder / f"rank{rank}.pt")
    (folder / f"rank{rank}.json").write_text(json.dumps(said))


def fit(name: str, torch_config: TorchConfig, failures: int = 0) -> None:
    (OUT / name).mkdir()
    TorchTrainer(
        train,
        train_loop_config={"name": name, "dies": failures > 0},
        torch_config=torch_config,
        scaling_config=ScalingConfig(
            num_workers=2, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(OUT / "runs"),
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    print(f"trained {name}", flush=True)


def main() -> None:
    options = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024}
    cluster = Cluster()
    try:
        cluster.add_node(**options, env_vars={"HERRING_HOST_ID": "a"}, include_dashboard=False)
        more = {"herring_server": 2}
        cluster.add_node(**options, env_vars={"HERRING_HOST_ID": "b"}, resources=more)
        ray.init(address=cluster.address, log_to_driver=False)
        for name in sys.argv[1:]:
            place = {"server_resources": {"herring_server": 1}}
            if name == "gloo":
                fit(name, TorchConfig(backend="gloo"))
            elif name == "colocated":
                fit(name, HerringConfig())
            elif name == "servers":
                fit(name, HerringConfig(servers=2, **place))
            elif name == "death":
                fit(name, HerringConfig(servers=1, **place), failures=1)
            elif name == "too-many":
                try:
                    fit(name, HerringConfig(servers=3, placement_timeout_s=2, **place))
                except Exception as error:
                    print(f"refused: {error}", flush=True)
        left = ray.available_resources()
        print(f"free: {left.get('herring_server', 0):g} for servers", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
