"""Rank 0 kills the server, and every rank learns of its death."""

import os
import signal
import subprocess

import numpy as np

import herring

signal.signal(signal.SIGTERM, signal.SIG_IGN)
herring.init()
array = np.zeros(1_000_000, np.float32)
herring.allreduce(array, name="warm")
if herring.rank() == 0:
    servers = subprocess.run(
        ["pgrep", "-P", str(os.getppid()), "-f", "[s]erver --stay"], capture_output=True, text=True
    ).stdout.split()
    assert len(servers) == 1, servers
    os.kill(int(servers[0]), signal.SIGKILL)
try:
    while True:
        herring.allreduce(array)
except herring.PeerLostError as error:
    assert "server 0" in str(error), error
    print("told", flush=True)
