"""Rank VICTIM dies between two meetings; the others learn of it in the next one."""

from __future__ import annotations

import os
import signal

import torch

import herring.torch as herring

herring.init()
model = torch.nn.Linear(30, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
diloco = herring.DiLoCo(model, optimizer, every=4, fragments=2, delay=1)
diloco.open()
try:
    for step in range(12):
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        if step == 6 and herring.rank() == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), signal.SIGKILL)
except herring.PeerLostError as error:
    assert "rank 1" in str(error), error
    assert diloco.steps >= 7
    print("has learned of it", flush=True)
