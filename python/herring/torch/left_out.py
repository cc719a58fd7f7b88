"""Keeps torch.compile out of all that calls the core; imported once, by the package."""

import importlib

from herring.torch.compiled import leave_out

_MODULES = {
    "herring.arrays": "agreement calls collectives gradients grouped groups handles joining "
    "messages objects operations planned rooted runtime",
    "herring.partial": "allreduce lists named reduction replay statistics",
    "herring.torch": "buckets buffers diloco fragments functional functions join kept local_sgd "
    "partial residuals round_buffer saved_meetings sparse state",
}

for _package, _names in _MODULES.items():
    leave_out(*(importlib.import_module(f"{_package}.{name}") for name in _names.split()))
