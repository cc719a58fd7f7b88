"""Prints the ports on which this process listens."""

import glob
import os
from pathlib import Path

import numpy as np

import herring

herring.init()
x = np.ones(100_000, np.float32)
for algorithm in ("herring", "ring"):
    herring.allreduce(x, "average", algorithm=algorithm)


def listening():
    inodes = set()
    for link in glob.glob("/proc/self/fd/*"):
        try:
            inodes.add(os.readlink(link))
        except OSError:
            pass
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                yield int(fields[1].rpartition(":")[2], 16)


print("ports", *listening())
herring.barrier()
