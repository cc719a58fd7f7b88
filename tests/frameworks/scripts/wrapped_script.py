"""Trains under a trainer without a process group; a wrapper of Herring's averages the gradients.

Gradients accumulate over two batches and are clipped. The parameters must be those of one process
with the batches of all ranks.

usage: wrapped_script.py trainer|fabric|accelerate ddp|optimizer
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from torch_cases.support import batch, close, everyones_batch, mlp, wrapped

STEPS, BATCHES, LIMIT = 3, 2, 0.05  # steps, batches of each, largest norm of its gradient


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone() -> torch.nn.Module:
    model = mlp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(BATCHES):
            inputs, labels = everyones_batch(BATCHES * step + number)
            (F.cross_entropy(model(inputs), labels) / BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    return model


def by_accelerate(call: Any, optimizer: Any, mine: list[Any]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=BATCHES)
    call, optimizer = accelerator.prepare(call, optimizer)
    for inputs, labels in mine:
        with accelerator.accumulate(call):
            accelerator.backward(F.cross_entropy(call(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(call.parameters(), LIMIT)
            optimizer.step()
            optimizer.zero_grad()


def by_fabric(call: Any, optimizer: Any, mine: list[Any]) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    call, optimizer = fabric.setup(call, optimizer)
    for number, (inputs, labels) in enumerate(mine, 1):
        fabric.backward(F.cross_entropy(call(inputs), labels) / BATCHES)
        if number % BATCHES == 0:
            fabric.clip_gradients(call, optimizer, max_norm=LIMIT)
            optimizer.step()
            optimizer.zero_grad()


def by_trainer(call: Any, optimizer: Any, mine: list[Any]) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = call

        def training_step(self, data: Any, _: int) -> torch.Tensor:
            return F.cross_entropy(self.net(data[0]), data[1])

        def configure_optimizers(self) -> Any:
            return optimizer

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=BATCHES,
        gradient_clip_val=LIMIT, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(mine, batch_size=None))


def main() -> None:
    route, wrap = sys.argv[1:]
    herring.init()
    torch.set_num_threads(1)
    model = mlp()
    call, optimizer, closing = wrapped(wrap, model, sgd(model))
    mine = [batch(number, herring.rank()) for number in range(STEPS * BATCHES)]
    train = {"accelerate": by_accelerate, "fabric": by_fabric, "trainer": by_trainer}[route]
    train(call if isinstance(call, torch.nn.Module) else model, optimizer, mine)
    closing.close()
    for parameter, expected in zip(model.parameters(), alone().parameters()):
        close(parameter, expected, 1e-5)


main()
