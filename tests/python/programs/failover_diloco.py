"""Prints a digest of parameters that have met; with "kill", servers die inside meetings."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

import torch

import herring.torch as herring
from serving import await_replaced, servers
from support import tell, told

torch.set_num_threads(1)
herring.init()
rank = herring.rank()
torch.manual_seed(0)
model = torch.nn.Linear(300, 200)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dies = {8: 1, 12: 0} if sys.argv[1:] == ["kill"] else {}
digest = hashlib.sha256()
diloco = herring.DiLoCo(model, optimizer, every=4, delay=1, wire_dtype="fp8", digest_every=1)
diloco.open()
for step in range(1, 17):
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    model(torch.randn(4, 300)).square().mean().backward()
    victim = servers()[dies[step]]["pid"] if step in dies and rank == 0 else 0
    since = time.monotonic()
    if step in dies and rank == 2:  # the servers have what the others send, and wait for this
        told(f"killed {step}")
    optimizer.step()  # a meeting begins after each fourth step
    if victim:
        os.kill(victim, signal.SIGKILL)
        tell(f"killed {step}")
        await_replaced(dies[step], since)
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy())
diloco.flush()
assert diloco.meetings == 4, diloco.meetings
for residual in diloco.residuals().values():
    assert residual.any()
    digest.update(residual.numpy())
diloco.close()
herring.barrier()
print(f"rank {rank}: {digest.hexdigest()}", flush=True)
herring.shutdown()
