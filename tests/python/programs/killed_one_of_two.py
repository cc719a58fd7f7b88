"""Rank 0 kills the last server, and every rank learns of its death."""

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
    words = ["pgrep", "-P", str(os.getppid()), "-f", "[s]erver --stay"]
    found = subprocess.run(words, capture_output=True, text=True).stdout.split()
    os.kill(int(found[-1]), signal.SIGKILL)
try:
    while True:
        herring.allreduce(array)
except herring.PeerLostError as error:
    assert "server " in str(error), error
    print("told", flush=True)
