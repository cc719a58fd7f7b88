"""Rank 1 starts with other settings than rank 0, and prints why it cannot join."""

import json
import os

import herring

rank = int(os.environ["HERRING_RANK"])
os.environ.update(json.loads(os.environ["TEST_OF_RANK"])[rank])
try:
    herring.init()
except herring.HerringError as error:
    print(f"rank {rank} {type(error).__name__}: {error}", flush=True)
else:
    raise SystemExit("the job has started")
