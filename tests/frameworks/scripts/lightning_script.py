"""Trains with Lightning's Trainer; BACKEND is the strategy's backend (default: Lightning's own)."""

from __future__ import annotations

import os

import lightning
import torch
from common import OUT, network, report, samples
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.nn import functional as F  # noqa: N812

OPTIONS = {
    "accelerator": "cpu",
    "devices": int(os.environ.get("DEVICES", "2")),
    "num_nodes": int(os.environ.get("NODES", "1")),
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accumulate_grad_batches": 2,
    "gradient_clip_val": 0.5,
    "precision": os.environ.get("PRECISION", "32-true"),
    "default_root_dir": OUT,
}


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]).float(), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def trainer(epochs: int) -> lightning.Trainer:
    backend = os.environ.get("BACKEND")
    strategy = DDPStrategy(process_group_backend=backend) if backend else "ddp"
    saver = ModelCheckpoint(dirpath=OUT / "saved", save_last=True)
    return lightning.Trainer(**OPTIONS, strategy=strategy, max_epochs=epochs, callbacks=[saver])


if __name__ == "__main__":
    lightning.seed_everything(3, verbose=False)
    loaders = [
        torch.utils.data.DataLoader(samples(), batch_size=4, shuffle=True),
        torch.utils.data.DataLoader(samples(21, seed=1), batch_size=4),
    ]
    first = trainer(1)
    first.fit(Module(), *loaders)
    module = Module()
    second = trainer(3)
    second.fit(module, *loaders, ckpt_path=OUT / "saved" / "last.ckpt")  # Resume from it.
    metrics = {name: value.item() for name, value in second.callback_metrics.items()}
    report(module, metrics=metrics, wrapper=type(second.strategy.model).__name__)
