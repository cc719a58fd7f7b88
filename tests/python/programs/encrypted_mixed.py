"""Rank 1 starts with other settings than rank 0, and prints why it cannot join."""

import json
import os

import herring
from support import tell, told

rank = int(os.environ["HERRING_RANK"])
os.environ.update(json.loads(os.environ["TEST_OF_RANK"])[rank])
# Rank 0 gives up after a timeout, so it begins when rank 1 is there.
if rank == 1:
    os.environ["HERRING_CONNECT_TIMEOUT"] = "600"
    tell("there")
else:
    told("there")
try:
    herring.init()
except herring.HerringError as error:
    print(f"rank {rank} {type(error).__name__}: {error}", flush=True)
else:
    raise SystemExit("the job has started")
