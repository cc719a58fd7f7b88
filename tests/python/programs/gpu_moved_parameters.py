"""Moves a parameter away from the GPU of its plan; the error names it."""

import torch

import herring.torch
from support import raises

herring.init()
for views in (False, True):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    ddp = herring.torch.DistributedDataParallel(model, gradient_as_bucket_view=views, name="m")
    for _ in range(2):
        ddp(torch.ones(1, 4)).sum().backward()
    # This pretends that the parameter came from another GPU, because there is only one device here.
    layout = ddp._reducer._layout
    layout._devices[layout.names.index("1.weight")] = torch.device("cuda", 1)
    text = "parameter '1.weight' was on cuda:1 when 'm' was made and is on cpu now; move the mod"
    raises(herring.InvalidArgumentError, text, ddp(torch.ones(1, 4)).sum().backward)
    ddp.close()
herring.shutdown()
