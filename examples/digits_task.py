"""What examples/dask_digits.py and examples/spark_digits.py share: the training, and the report.

Both programs send this file to the processes of their cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence


def train(epochs: int) -> dict[str, object]:
    """Runs one worker; returns the accuracy on the test set and a hash of the parameters."""
    import torch
    from sklearn.datasets import load_digits

    import herring.torch as herring

    herring.init()
    try:
        rank, size = herring.rank(), herring.size()
        torch.set_num_threads(1)
        digits = load_digits()
        images = torch.from_numpy(digits.images).float().flatten(1) / 16
        labels = torch.from_numpy(digits.target)
        shuffle = torch.Generator().manual_seed(0)  # The same on all ranks.
        order = torch.randperm(len(labels), generator=shuffle)
        test, rest = order[:600], order[600:]
        layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        model = herring.DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(epochs):
            order = rest[torch.randperm(len(rest), generator=shuffle)]
            for first in range(0, len(rest) - 32 * size + 1, 32 * size):
                mine = order[first : first + 32 * size][rank::size]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
                optimizer.step()
        right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        servers = sum(server["dedicated"] for server in herring.stats()["servers"])
        return {"accuracy": right, "parameters": digest.hexdigest(), "servers": servers}
    finally:
        herring.shutdown()


def report(results: Sequence[dict[str, object]]) -> None:
    """Prints the result of rank 0, and whether all ranks have the same parameters."""
    same = len({result["parameters"] for result in results}) == 1
    print(json.dumps({"workers": len(results), "identical": same, **results[0]}))
    if not same:
        raise SystemExit("the ranks ended with different parameters")
