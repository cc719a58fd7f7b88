"""Trains with Lightning Fabric; BACKEND is the strategy's backend (default: Lightning's own)."""

from __future__ import annotations

import os

import torch
from common import OUT, network, report, samples
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.nn import functional as F  # noqa: N812

backend = os.environ.get("BACKEND")
fabric = Fabric(
    accelerator="cpu",
    devices=int(os.environ.get("DEVICES", "2")),
    num_nodes=int(os.environ.get("NODES", "1")),
    strategy=DDPStrategy(process_group_backend=backend) if backend else "ddp",
    precision=os.environ.get("PRECISION", "32-true"),
)
fabric.launch()
fabric.seed_everything(3, verbose=False)
model = network()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(
    torch.utils.data.DataLoader(samples(), batch_size=4, shuffle=True)
)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for index, (inputs, labels) in enumerate(loader):
        waits = index % 2 == 0 and index + 1 < len(loader)
        with fabric.no_backward_sync(model, enabled=waits):
            loss = F.cross_entropy(model(inputs).float(), labels)
            fabric.backward(loss)
        if not waits:
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
    state = {"model": model, "optimizer": optimizer}
    if epoch == 0:
        fabric.save(OUT / "first.ckpt", state)
    elif epoch == 1:
        fabric.load(OUT / "first.ckpt", state)
losses = fabric.all_gather(loss.detach())
report(model.module, losses=losses.tolist(), wrapper=type(model._forward_module).__name__)
