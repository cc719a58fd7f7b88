"""Generative adversarial networks: generator and discriminator have separate wrappers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import loop, normal, state


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.net(noise[..., None, None])


class Discriminator(nn.Module):
    def __init__(self, *, normed: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 3, 1, 1, bias=False),
            nn.BatchNorm2d(16) if normed else nn.Identity(),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(16 * 16, 1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images).squeeze(1)


def real(step: int, rank: int) -> torch.Tensor:
    return torch.tanh(normal((8, 1, 8, 8), step, rank) + 0.5)


@loop
def gan(dist):
    """DCGAN: the gradients of the discriminator's two backward passes add up before its step."""
    generator, discriminator = Generator(), Discriminator(normed=True)
    g, d = dist.wrap(generator), dist.wrap(discriminator)
    g_optimizer = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(8), torch.zeros(8)
    for step in range(8):
        d.zero_grad()
        F.binary_cross_entropy_with_logits(d(real(step, dist.rank)), ones).backward()
        fake = g(normal((8, 8), step, dist.rank, 1))
        F.binary_cross_entropy_with_logits(d(fake.detach()), zeros).backward()
        d_optimizer.step()
        g.zero_grad()
        F.binary_cross_entropy_with_logits(d(fake), ones).backward()
        g_optimizer.step()
    return state(generator, discriminator)


@loop
def gan_one_backward(dist):
    """Hinge loss: D(real) and D(fake) share a backward pass, and D is frozen while G learns."""
    generator, discriminator = Generator(), Discriminator(normed=True)
    g, d = dist.wrap(generator), dist.wrap(discriminator)
    g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    d_optimizer = torch.optim.RMSprop(discriminator.parameters(), lr=1e-3)
    for step in range(8):
        noise = normal((8, 8), step, dist.rank, 1)
        with torch.no_grad():
            fake = g(noise)
        d_optimizer.zero_grad()
        loss = F.relu(1 - d(real(step, dist.rank))).mean() + F.relu(1 + d(fake)).mean()
        loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        (-discriminator(g(noise)).mean()).backward(inputs=list(generator.parameters()))
        g_optimizer.step()
    return state(generator, discriminator, buffers=dist.rank == 0)


@loop
def wasserstein_gan(dist):
    """Wasserstein GAN with gradient penalty, whose critic learns three times as often."""
    generator, critic = Generator(), Discriminator(normed=False)
    g, c = dist.wrap(generator), dist.wrap(critic)
    g_optimizer = torch.optim.Adam(g.parameters(), lr=1e-3, betas=(0.0, 0.9))
    c_optimizer = torch.optim.Adam(c.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for step in range(9):
        images = real(step, dist.rank)
        fake = g(normal((8, 8), step, dist.rank, 1)).detach()
        share = normal((8, 1, 1, 1), step, dist.rank, 2).sigmoid()
        between = (share * images + (1 - share) * fake).requires_grad_()
        scores = c(between)
        (slopes,) = torch.autograd.grad(
            scores, between, torch.ones_like(scores), create_graph=True, retain_graph=True
        )
        penalty = (slopes.flatten(1).norm(dim=1) - 1).square().mean()
        c_optimizer.zero_grad()
        (c(fake).mean() - c(images).mean() + 10 * penalty).backward()
        c_optimizer.step()
        if step % 3 == 2:
            for p in critic.parameters():
                p.requires_grad_(False)
            g_optimizer.zero_grad()
            (-critic(g(normal((8, 8), step, dist.rank, 3))).mean()).backward()
            g_optimizer.step()
            for p in critic.parameters():
                p.requires_grad_(True)
    return state(generator, critic)
