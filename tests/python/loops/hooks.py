"""Programs that use hooks or modify the model and its gradients directly."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune

from .support import Block, labelled, loop, mlp, normal, state


def steps(dist, model, ddp, optimizer=None, count: int = 8, each=lambda: None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(count):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), labels).backward()
        each()
        optimizer.step()
    return state(model)


@loop
def gradient_hooks(dist):
    """Hooks, added before and after wrapping, change gradients before or after accumulation."""
    model = mlp()
    parameters = list(model.parameters())
    seen = []

    def clip(p):
        p.grad.clamp_(-0.02, 0.02)

    def count(p):
        seen.append(p.grad.abs().max())

    parameters[0].register_hook(lambda gradient: gradient * (normal(gradient.shape, 1) > 0))
    parameters[1].register_post_accumulate_grad_hook(clip)
    ddp = dist.wrap(model)
    parameters[2].register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for p in parameters[3:]:
        p.register_post_accumulate_grad_hook(clip)
    parameters[2].register_post_accumulate_grad_hook(count)
    model[2].register_full_backward_hook(lambda _m, inputs, _o: (inputs[0] * 2,))
    return steps(dist, model, ddp) | {"seen": torch.stack(seen)}


@loop
def noise_per_parameter(dist):
    """Adds and removes a hook, so that gradients are noisy in every other step."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):

        def noise(p, step=step):
            p.grad = p.grad + 0.1 * normal(p.shape, step, dist.rank)

        hooks = []
        if step % 2:
            hooks = [p.register_post_accumulate_grad_hook(noise) for p in model.parameters()]
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), labels).backward()
        for hook in hooks:
            hook.remove()
        optimizer.step()
    return state(model)


@loop
def pruned(dist):
    """Masks prune the weights before each pass; the model is pruned further during training."""
    model = mlp()
    for index in (0, 2):
        prune.l1_unstructured(model[index], "weight", 0.3)
    ddp = dist.wrap(model)
    result = steps(dist, model, ddp)
    for index in (0, 2):
        prune.l1_unstructured(model[index], "weight", 0.2)
    return result | {f"again.{k}": v for k, v in steps(dist, model, ddp).items()}


@loop
def normed_weights(dist):
    """Weight normalization, and spectral normalization, whose buffers change in each pass."""
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(16, 32)),
        nn.Tanh(),
        nn.utils.spectral_norm(nn.Linear(32, 32)),
        nn.Tanh(),
        parametrizations.weight_norm(nn.Linear(32, 32)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(32, 4)),
    )
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(6):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        # A discriminator makes two passes, too: power iterations change the buffers in each.
        loss = F.cross_entropy(ddp(inputs), labels) + 0.1 * ddp(-inputs).square().mean()
        loss.backward()
        optimizer.step()
    return state(model)


@loop
def adversarial_examples(dist):
    """PGD: backward passes to the inputs, sometimes also to the weights, precede the real one."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        attacked = inputs.clone()
        for _ in range(2):
            attacked.requires_grad_()
            loss = F.cross_entropy(ddp(attacked), labels)
            if step % 3 == 0:
                loss.backward()
                slope = attacked.grad
            elif step % 3 == 1:
                loss.backward(inputs=[attacked])
                slope = attacked.grad
            else:
                (slope,) = torch.autograd.grad(loss, attacked)
            attacked = (attacked.detach() + 0.05 * slope.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(ddp(attacked), labels).backward()
        optimizer.step()
    return state(model)


@loop
def alternating(dist):
    """Layers of the model are frozen and learn again in turn."""
    model = mlp()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1)
    for step in range(8):
        model[0].requires_grad_(step % 2 == 0)
        model[2].requires_grad_(step % 3 == 0)
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    return state(model)


@loop
def outer_optimizer(dist):
    """DiLoCo: after some local steps, an outer optimizer steps with the ranks' mean change."""
    model = mlp()
    ddp = dist.wrap(model)
    inner = torch.optim.AdamW(model.parameters(), lr=5e-3)
    anchor = [p.detach().clone().requires_grad_() for p in model.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(9):
        inputs, labels = labelled(step, dist.rank)
        inner.zero_grad()
        with ddp.no_sync():
            F.cross_entropy(ddp(inputs), labels).backward()
        inner.step()
        if step % 3 == 2:
            for old, new in zip(anchor, model.parameters()):
                old.grad = dist.allreduce(old.detach() - new.detach()) / dist.size
            outer.step()
            with torch.no_grad():
                for old, new in zip(anchor, model.parameters()):
                    new.copy_(old)
    return state(model)


@loop
def averaged_weights(dist):
    """Local SGD: every few steps, the weights themselves are averaged in place."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(9):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        if step < 3:
            F.cross_entropy(ddp(inputs), labels).backward()
        else:
            with ddp.no_sync():
                F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
        if step % 3 == 2:
            for p in model.parameters():
                dist.allreduce(p.data).div_(dist.size)
    return state(model)


class Recomputed(nn.Module):
    """Reversible blocks: backward recomputes the activations from the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.f, self.g = mlp(width=16, outputs=8, inputs=8), mlp(width=16, outputs=8, inputs=8)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        f, g = self.f, self.g

        class Reversible(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                a, b = x.chunk(2, 1)
                with torch.no_grad():
                    c = a + f(b)
                    d = b + g(c)
                ctx.save_for_backward(c, d)
                return torch.cat([c, d], 1)

            @staticmethod
            def backward(ctx, gradient):
                c, d = (t.detach() for t in ctx.saved_tensors)
                dc, dd = gradient.chunk(2, 1)
                with torch.enable_grad():
                    c.requires_grad_()
                    middle = g(c)
                middle.backward(dd)
                dc = dc + c.grad
                b = (d - middle).detach().requires_grad_()
                with torch.enable_grad():
                    left = f(b)
                left.backward(dc)
                return torch.cat([dc, dd + b.grad], 1)

        return self.head(Reversible.apply(self.up(x)))


@loop
def reversible(dist):
    """Backward passes nested in the backward pass produce the gradients of the middle layers."""
    model = Recomputed()
    ddp = dist.wrap(model)
    return steps(dist, model, ddp, torch.optim.Adam(model.parameters(), lr=5e-3))


@loop
def one_output_of_many(dist):
    """Deep supervision: the loss uses different entries of a dictionary of outputs in each step."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

        def forward(self, x):
            outputs = {}
            for index, (block, head) in enumerate(zip(self.blocks, self.heads)):
                x = block(x)
                outputs[f"level{index}"] = {"logits": head(x).mean(1), "inside": [x]}
            return outputs

    model = Deep()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(8):
        inputs = normal((4, 5, 16), step, dist.rank)
        outputs = ddp(inputs)
        chosen = {(step + dist.rank) % 3, step % 2}
        optimizer.zero_grad()
        labels = inputs.mean(1)[:, :4].argmax(1)
        sum(F.cross_entropy(outputs[f"level{i}"]["logits"], labels) for i in chosen).backward()
        optimizer.step()
    return state(model)


@loop
def flat_gradients(dist):
    """Every `.grad` is set once to a piece of one buffer, which the step reads."""
    model = mlp()
    ddp = dist.wrap(model)
    parameters = list(model.parameters())
    weights = nn.utils.parameters_to_vector(parameters).detach()
    nn.utils.vector_to_parameters(weights, parameters)
    gradients = torch.zeros_like(weights)
    for p, piece in zip(parameters, gradients.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
    momentum = torch.zeros_like(weights)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        gradients.zero_()
        F.cross_entropy(ddp(inputs), labels).backward()
        momentum.mul_(0.9).add_(gradients / gradients.norm().clamp(min=1.0))
        weights.sub_(momentum, alpha=0.1)
    return state(model, gradients=gradients)


@loop
def backward_in_threads(dist):
    """Each step runs in a different thread, with anomaly detection and offloaded activations."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(step):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu(), torch.autograd.set_detect_anomaly(step % 2 == 0):
            F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(max_workers=3) as pool:
            for step in range(8):
                pool.submit(train, step).result()
    return state(model)


@loop
def perturbed_weights(dist):
    """Calls the wrapper with weights sampled around its own."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        sampled = {
            key: p + 0.1 * p.detach().abs() * normal(p.shape, step, dist.rank)
            for key, p in ddp.named_parameters()
        }
        optimizer.zero_grad()
        F.cross_entropy(functional_call(ddp, sampled, (inputs,)), labels).backward()
        optimizer.step()
    return state(model)
