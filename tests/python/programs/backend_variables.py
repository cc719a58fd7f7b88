"""Finds the job through torchrun's variables; its servers were started by `herring run`."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import herring

place = {
    "RANK": os.environ["HERRING_RANK"],
    "WORLD_SIZE": os.environ["HERRING_SIZE"],
    "MASTER_ADDR": "127.0.0.1",
}
os.environ.update(place)
path = os.path.join(os.environ["FOLDER"], "port")
if place["RANK"] == "0":
    import socket

    holder = socket.socket()  # It does not listen, and keeps the port from others until the end.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    with open(path + ".new", "w") as file:
        file.write(str(port))
    os.rename(path + ".new", path)
while not os.path.exists(path):
    time.sleep(0.01)
os.environ["MASTER_PORT"] = Path(path).read_text()
dist.init_process_group("herring")
tensor = torch.ones(300_000)
dist.all_reduce(tensor)
assert (tensor == 2).all()
stats = herring.stats()
assert [one["dedicated"] for one in stats["servers"]] == [True] * 2, stats
dist.destroy_process_group()
print("well", flush=True)
