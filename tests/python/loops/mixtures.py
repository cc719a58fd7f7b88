"""Several models and optimizers in one step, wrapped in both ways."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import inexact, integers, labelled, loop, mlp, normal, state


@loop
def actor_and_critic(dist):
    """Soft actor-critic: the actor is wrapped; for the other models, the optimizers average."""
    actor_net = mlp(outputs=4)
    critics = nn.ModuleList(mlp(inputs=18, outputs=1) for _ in range(2))
    temperature = nn.ParameterDict({"log": torch.zeros(1)})
    actor = dist.wrap(actor_net)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.critics = critics

        def forward(self, states, actions):
            inputs = torch.cat([states, actions], 1)
            return [critic(inputs).squeeze(1) for critic in self.critics]

    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = temperature["log"]

        def forward(self, entropy):
            return -(self.log * entropy)

    both, heat = Both(), Temperature()
    score, critic_optimizer = dist.wrap_optimizer(both, torch.optim.Adam(both.parameters(), 3e-3))
    warm, heat_optimizer = dist.wrap_optimizer(heat, torch.optim.Adam(heat.parameters(), 1e-2))
    target = copy.deepcopy(both).requires_grad_(False)

    def act(model, states, *key):
        mean, spread = model(states).chunk(2, 1)
        spread = spread.clamp(-3, 1).exp()
        noise = normal(tuple(mean.shape), *key)
        action = torch.tanh(mean + spread * noise)
        likelihood = -(noise.square() / 2 + spread.log()).sum(1)
        return action, likelihood - (1 - action.square() + 1e-6).log().sum(1)

    for step in range(8):
        states, after = normal((8, 16), step, dist.rank), normal((8, 16), step, dist.rank, 1)
        actions = torch.tanh(normal((8, 2), step, dist.rank, 2))
        rewards = -(actions - states[:, :2]).square().sum(1)
        with torch.no_grad():
            following, likelihood = act(actor, after, step, dist.rank, 3)
            value = torch.minimum(*target(after, following)) - heat.log.exp() * likelihood
            wanted = rewards + 0.9 * value
        critic_optimizer.zero_grad()
        sum(F.mse_loss(found, wanted) for found in score(states, actions)).backward()
        critic_optimizer.step()

        for p in both.parameters():
            p.requires_grad_(False)
        chosen, likelihood = act(actor, states, step, dist.rank, 4)
        actor_optimizer.zero_grad()
        best = torch.minimum(*both(states, chosen))
        (heat.log.detach().exp() * likelihood - best).mean().backward()
        actor_optimizer.step()
        for p in both.parameters():
            p.requires_grad_(True)

        heat_optimizer.zero_grad()
        warm((likelihood.detach() - 2).mean()).sum().backward()
        heat_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(both.parameters()), 0.1)
    return state(actor_net, both, heat, target)


@loop
def policy_epochs(dist):
    """PPO: several epochs over the same experience; all ranks stop early together."""
    net = nn.ModuleDict({"body": mlp(outputs=16), "pi": nn.Linear(16, 3), "v": nn.Linear(16, 1)})

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, states):
            features = torch.tanh(self.net["body"](states))
            return self.net["pi"](features).log_softmax(1), self.net["v"](features).squeeze(1)

    model = Policy()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3, eps=1e-5)
    stopped = []
    for update in range(4):
        states = normal((12, 16), update, dist.rank)
        with torch.no_grad():
            old, value = ddp(states)  # each rank computes this alone
            actions = torch.multinomial(old.exp(), 1)
            old = old.gather(1, actions).squeeze(1)
            advantage = states[:, :3].gather(1, actions).squeeze(1) - value
            moments = torch.stack([advantage.mean(), advantage.square().mean()])
            mean, square = dist.allreduce(moments) / dist.size
            advantage = (advantage - mean) / (square - mean.square()).sqrt()
        for epoch in range(6):
            for rows in integers(12, (2, 6), update, epoch):
                policy, value = ddp(states[rows])
                new = policy.gather(1, actions[rows]).squeeze(1)
                ratio = (new - old[rows]).exp()
                gain = torch.min(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows])
                entropy = -(policy.exp() * policy).sum(1).mean()
                loss = -gain.mean() + 0.5 * value.square().mean() - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            drift = (old[rows] - new).mean().detach().reshape(1)
            if dist.allreduce(drift).item() / dist.size > 0.02:
                stopped.append(epoch)
                break
        else:
            stopped.append(6)
    return state(model, stopped=torch.tensor(stopped, dtype=torch.float32))


@loop
@inexact
def recommender(dist):
    """Sparse embeddings and a dense net, each with an optimizer for its kind of gradients."""
    model = nn.ModuleDict(
        {"user": nn.Embedding(40, 8, sparse=True), "item": nn.Embedding(30, 8, sparse=True)}
    )
    net = mlp(outputs=1)

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.net = model, net

        def forward(self, users, items):
            pair = torch.cat([self.tables["user"](users), self.tables["item"](items)], 1)
            return self.net(pair).squeeze(1)

    scores = Scores()
    ddp = dist.wrap(scores)
    optimizers = [
        torch.optim.SparseAdam(list(model.parameters()), lr=2e-2),
        torch.optim.Adam(net.parameters(), lr=5e-3),
    ]
    for step in range(8):
        users, items = (integers(n, (8,), step, dist.rank, n) for n in (40, 30))
        for optimizer in optimizers:
            optimizer.zero_grad()
        wanted = ((users + items) % 2).float()
        F.binary_cross_entropy_with_logits(ddp(users, items), wanted).backward()
        for optimizer in optimizers:
            optimizer.step()
    return state(scores)


@loop
@inexact
def sparse_and_dense(dist):
    """SGD and Adagrad accept sparse and dense gradients; Adagrad rounds them differently."""
    results = {}
    for kind, options in ((torch.optim.SGD, {"lr": 0.5}), (torch.optim.Adagrad, {"lr": 0.1})):
        model = nn.Sequential(nn.EmbeddingBag(40, 16, sparse=True), nn.Linear(16, 4))
        ddp = dist.wrap(model)
        optimizer = kind(model.parameters(), **options)
        for step in range(8):
            words = integers(40, (8, 3), step, dist.rank)
            optimizer.zero_grad()
            F.cross_entropy(ddp(words), words.sum(1) % 4).backward()
            optimizer.step()
        results.update({f"{kind.__name__}.{key}": value for key, value in state(model).items()})
    return results


@loop
def encoder_and_decoders(dist):
    """Three wrappers in one graph: an encoder and two decoders share an optimizer."""
    parts = [mlp(outputs=12), mlp(inputs=6), mlp(inputs=6, outputs=16)]
    encoder, classify, rebuild = (dist.wrap(part) for part in parts)
    everything = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(everything, lr=5e-3)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        mean, spread = encoder(inputs).chunk(2, 1)
        code = mean + spread.exp() * normal(tuple(mean.shape), step, dist.rank, 1)
        divergence = (mean.square() + (2 * spread).exp() - 2 * spread - 1).sum(1).mean() / 2
        loss = F.cross_entropy(classify(code), labels) + F.mse_loss(rebuild(code), inputs)
        optimizer.zero_grad()
        (loss + 0.01 * divergence).backward()
        nn.utils.clip_grad_norm_(everything, 1.0)
        optimizer.step()
    return state(*parts)
