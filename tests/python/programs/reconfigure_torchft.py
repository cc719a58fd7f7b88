"""A replica that trains with torchft; the test kills one and starts another in its place.

The first process also runs torchft's lighthouse, which decides who takes part.
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer

import herring
from herring.torch.torchft import ProcessGroupHerring
from reconfigure_support import RANK, SIZE, done, meet, store

VICTIM, KILLED_AT = 2, 4  # by its name the victim is rank 0 of the quorum

if RANK == 0:
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=2,
        join_timeout_ms=3000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=1000,
    )
    store.set("lighthouse", lighthouse.address())
own = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # one per replica

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
limit = timedelta(seconds=20)
group = ProcessGroupHerring(timeout=limit)


def load(state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = torchft.Manager(
    pg=group,
    min_replica_size=2,
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    replica_id=f"replica_{SIZE - RANK}",
    store_addr="127.0.0.1",
    store_port=own.port,
    rank=0,
    world_size=1,
    lighthouse_addr=store.get("lighthouse").decode(),
    hostname="127.0.0.1",
    timeout=limit,
    quorum_timeout=limit,
    connect_timeout=limit,
)
ddp = torchft.DistributedDataParallel(manager, model)
optimizer = torchft.Optimizer(manager, optimizer)
if not os.environ.get("AGAIN"):
    meet("ready", range(SIZE))  # so that all are in the first quorum
sizes, last = [], None
while last is None or manager.current_step() < last:
    optimizer.zero_grad()
    step = manager.current_step()
    ddp(torch.full((3, 4), float(RANK + 1))).square().sum().backward()
    if RANK == VICTIM and step == KILLED_AT and not os.environ.get("AGAIN"):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    if manager.current_step() == step:
        continue  # the step failed, and is done again
    sizes.append(manager.num_participants())
    if RANK == 0 and last is None and SIZE - 1 in sizes and sizes[-1] == SIZE:
        store.set("last", str(step + 20))  # the others read it within a step or two
    if last is None and store.check(["last"]):
        last = int(store.get("last"))
print(f"replicas in each step: {sizes}", flush=True)
assert group.getBackendName() == "torchft-herring" and herring.is_initialized()
store.set(f"parameters/{RANK}", str([p.tolist() for p in model.parameters()]))
found = {store.get(f"parameters/{place}") for place in range(SIZE)}
assert len(found) == 1, found
manager.shutdown(wait=False)
group.shutdown()
assert not herring.is_initialized()
meet("over", range(SIZE))  # the lighthouse stays until the end
done()
