"""Trains with Accelerate; if BACKEND is set, the script begins the process group itself."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from common import OUT, network, report, samples
from torch.nn import functional as F  # noqa: N812

if "BACKEND" in os.environ:
    dist.init_process_group(os.environ["BACKEND"])
precision = os.environ.get("PRECISION", "no")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
loader = torch.utils.data.DataLoader(samples(), batch_size=4, shuffle=True)
tests = torch.utils.data.DataLoader(samples(21, seed=1), batch_size=4)
model, optimizer, loader, tests, schedule = accelerator.prepare(
    model, optimizer, loader, tests, schedule
)
for epoch in range(3):
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
    if epoch == 0:
        accelerator.save_state(OUT / "first")
    if epoch == 1:  # Resume from the checkpoint.
        accelerator.load_state(OUT / "first")
model.eval()
found = []
with torch.no_grad():
    for inputs, labels in tests:
        found.append(accelerator.gather_for_metrics(model(inputs).argmax(1) == labels))
right = torch.cat(found)
assert len(right) == 21, len(right)  # Padding of the last batch is not counted.
accelerator.wait_for_everyone()
report(
    accelerator.unwrap_model(model),
    right=right.float().mean().item(),
    kind=str(accelerator.distributed_type),
    wrapper=type(model).__name__,
)
accelerator.end_training()
