"""Derivatives inside the loss: meta-learning, forces, residuals of differential equations."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812

from .support import generator, loop, mlp, normal, state


class MetaLearner(nn.Module):
    """MAML with learned learning rates for the inner steps."""

    def __init__(self, steps: int = 2) -> None:
        super().__init__()
        self.net = mlp(width=24, outputs=1, inputs=1)
        self.rates = nn.ParameterList(
            nn.Parameter(torch.full((steps,), 0.05)) for _ in self.net.parameters()
        )
        self.steps = steps

    def forward(self, support, query):
        inputs, targets = support
        weights = dict(self.net.named_parameters())
        for step in range(self.steps):
            loss = F.mse_loss(functional_call(self.net, weights, (inputs,)), targets)
            slopes = torch.autograd.grad(loss, weights.values(), create_graph=True)
            weights = {
                key: weight - rate[step] * slope
                for (key, weight), rate, slope in zip(weights.items(), self.rates, slopes)
            }
        return functional_call(self.net, weights, (query,))


def sine(rows: int, *key: int):
    amplitude, phase = 0.5 + torch.rand(2, generator=generator(*key))
    inputs = 5 * normal((rows, 1), *key, 1)
    return inputs, amplitude * torch.sin(inputs + phase)


@loop
def meta_learning(dist):
    """Second derivatives: three tasks per rank and step share one backward pass."""
    model = MetaLearner()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3)
    for step in range(8):
        losses = []
        for task in range(3):
            inputs, targets = sine(10, step, dist.rank, task)
            losses.append(F.mse_loss(ddp((inputs[:5], targets[:5]), inputs[5:]), targets[5:]))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return state(model)


@loop
def meta_learning_in_turn(dist):
    """Like `learn2learn`, clones the wrapper's weights, adapts, and runs backward for each task."""
    model = mlp(width=24, outputs=1, inputs=1)
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3)
    for step in range(6):
        optimizer.zero_grad()
        for task in range(3):
            inputs, targets = sine(10, step, dist.rank, task)
            loss = F.mse_loss(ddp(inputs[:5]), targets[:5])
            weights = dict(ddp.module.named_parameters())
            slopes = torch.autograd.grad(loss, weights.values(), create_graph=True)
            fast = {key: w - 0.05 * s for (key, w), s in zip(weights.items(), slopes)}
            adapted = functional_call(ddp.module, fast, (inputs[5:],))
            F.mse_loss(adapted, targets[5:]).backward()
        for p in model.parameters():
            p.grad.div_(3)
        optimizer.step()
    return state(model)


class Potential(nn.Module):
    """Computes energies of molecules and, inside forward, their derivatives: the forces."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 16)
        self.net = mlp(inputs=18, outputs=1)

    def forward(self, kinds, positions):
        positions = positions.requires_grad_()
        distances = (positions[:, :, None] - positions[:, None]).square().sum(-1)
        features = torch.stack([(-distances).exp().sum(-1), (-distances / 4).exp().sum(-1)], -1)
        atoms = self.net(torch.cat([self.embedding(kinds), features], -1))
        energy = atoms.sum((1, 2))
        (slopes,) = torch.autograd.grad(energy.sum(), positions, create_graph=self.training)
        return {"energy": energy, "forces": -slopes}


@loop
def forces(dist):
    """Trains an interatomic potential; validation on one rank alone needs derivatives, too."""
    model = Potential()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(8):
        ddp.train()
        kinds = torch.randint(0, 3, (4, 5), generator=generator(step, dist.rank))
        positions = normal((4, 5, 3), step, dist.rank, 1)
        output = ddp(kinds, positions)
        wanted = torch.sin(kinds.sum(1).float())
        loss = F.mse_loss(output["energy"], wanted)
        loss = loss + 10 * F.mse_loss(output["forces"], -positions.detach() / 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ddp.eval()
        error = torch.zeros(1)
        if dist.rank == 0:
            output = ddp.module(torch.zeros(1, 5, dtype=torch.long), normal((1, 5, 3), 99))
            error[0] = output["forces"].detach().square().mean()
        schedule.step(dist.broadcast(error).item())
    return state(model)


class Equation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(outputs=1, inputs=2)
        self.speed = nn.Parameter(torch.tensor(0.5))  # an unknown coefficient, also learned

    def forward(self, points):
        points = points.requires_grad_()
        value = self.net(points)
        slopes = torch.autograd.grad(value.sum(), points, create_graph=True)[0]
        curve = torch.autograd.grad(slopes[:, 0].sum(), points, create_graph=True)[0][:, 0]
        return value, slopes[:, 1] - self.speed * curve


@loop
def physics(dist):
    """Trains a network to obey the heat equation, which needs third derivatives."""
    model = Equation()
    ddp = dist.wrap(model)
    optimizer = torch.optim.NAdam(ddp.parameters(), lr=5e-3)
    for step in range(8):
        points = normal((12, 2), step, dist.rank)
        value, residual = ddp(points)
        loss = residual.square().mean() + F.mse_loss(value, points.detach()[:, :1].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return state(model)


@loop
def per_sample_gradients(dist):
    """Differential privacy: the loop clips per-sample gradients and averages them itself."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)

    def loss(weights, sample, label):
        return F.cross_entropy(functional_call(ddp.module, weights, (sample[None],)), label[None])

    for step in range(6):
        inputs = normal((6, 16), step, dist.rank)
        labels = inputs[:, :4].argmax(1)
        weights = {key: p.detach() for key, p in ddp.module.named_parameters()}
        each = vmap(grad(loss), (None, 0, 0))(weights, inputs, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()], 1).norm(dim=1)
        factors = (0.5 / norms).clamp(max=1)
        optimizer.zero_grad()
        for key, p in ddp.module.named_parameters():
            mean = torch.einsum("i,i...->...", factors, each[key]) / len(inputs)
            p.grad = dist.allreduce(mean.contiguous()) / dist.size
        optimizer.step()
        # An ordinary step with a public batch follows.
        inputs = normal((6, 16), step, dist.rank, 1)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()
    return state(model)
