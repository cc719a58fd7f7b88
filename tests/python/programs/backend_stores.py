"""Forms process groups through files, through stores and of one rank; then a rank dies in one."""

import os
import threading

import torch
import torch.distributed as dist

import herring
import herring.autoload
from support import raises, tell, told

# An installed package registers the backend itself, without an import of herring.torch.
herring.autoload.register()

rank, size = (int(os.environ.pop(f"HERRING_{name}")) for name in ("RANK", "SIZE"))
for name in [name for name in os.environ if name.startswith("HERRING_")]:
    del os.environ[name]  # only the arguments of init_process_group remain
directory = os.environ["FOLDER"]
for turn, url in enumerate((f"file://{directory}/a", f"file://{directory}/b")):
    dist.init_process_group("herring", init_method=url, rank=rank, world_size=size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    port = torch.zeros(1, dtype=torch.int64)
    if turn == 1:
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            port.fill_(store.port)
        dist.broadcast(port, 0)
    dist.destroy_process_group()
if rank != 0:
    store = dist.TCPStore("127.0.0.1", int(port), None, False, wait_for_workers=False)
for _ in range(2):  # twice with the same store
    dist.init_process_group(
        "herring", store=store, rank=rank, world_size=size, pg_options={"flows": 2}
    )
    dist.barrier()
    dist.destroy_process_group()
raises(
    RuntimeError,
    "HashStore",
    dist.init_process_group,
    "herring",
    store=dist.HashStore(),
    rank=rank,
    world_size=size,
)
raises(
    ValueError,
    "pg_options",
    dist.init_process_group,
    "herring",
    pg_options=3,
    store=dist.HashStore(),
    rank=0,
    world_size=1,
)
dist.init_process_group("herring", store=dist.HashStore(), rank=0, world_size=1)
gathered = [torch.zeros(2)]
dist.all_gather(gathered, torch.ones(2))
assert gathered[0].tolist() == [1.0, 1.0]
thread = threading.Thread(target=lambda: dist.all_reduce(gathered[0]))
thread.start()
thread.join()
dist.destroy_process_group()

# A rank dies: waits in Python and waits for futures fail on the others.
dist.init_process_group(
    "herring", store=dist.PrefixStore("last", store), rank=rank, world_size=size
)
alone = dist.new_group([0])
dist.barrier()
if rank == 1:
    told("called")
    os._exit(0)
work = dist.all_reduce(torch.ones(3), async_op=True)
tell("called")
raises(RuntimeError, "rank 1", work.get_future().wait)
raises(herring.PeerLostError, "rank 1", work.wait)
raises(herring.PeerLostError, "rank 1", dist.all_reduce, torch.ones(3))
dist.destroy_process_group()
print("survived")
