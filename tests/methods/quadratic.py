"""P stages of one weight each under a method: their path, and whether it stays bounded on f(w) = w^2 / 2."""

import torch
from torch import nn

from tests.pipeline.toys import emulator


class Weights(nn.Module):
    """P stages of one number each, which the loss gets as a row; all begin at `start`."""

    def __init__(self, stages=1, start=1.0):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(stages))
        for module in self.stages:
            nn.init.constant_(module.weight, start)

    def forward(self, x):
        return torch.stack([module(x) for module in self.stages]).flatten()


def momentum(beta=0.0, nesterov=False):
    return lambda groups: torch.optim.SGD(groups, lr=0.0, momentum=beta, nesterov=nesterov)


def path(method, steps, loss, rate=1.0, optimizer=None, stages=1, N=1, slots="duplex", start=1.0):
    """w_0 .. w_steps of every stage, [version, stage], and what the forwards read, [step, stage] (of n = 0).

    loss(w, t) is the loss of step t at each of the weights w [P]; a microbatch has an N-th of it.
    """
    net, read = Weights(stages, start), []
    one = torch.ones(1, dtype=torch.float64)
    fast = emulator(net, one, range(stages), method, optimizer or momentum(), N, slots=slots)
    found = [torch.cat(fast.flat_weights())]
    for step in range(steps):

        def share(model, x, step=step):
            w = model(x)
            if len(read) == step:
                read.append(w.detach().clone())
            return (loss(w, step) / N).sum()

        fast.step([one] * N, share, rate)
        found.append(torch.cat(fast.flat_weights()))
    return torch.stack(found), torch.stack(read)


def grows(method, rate, steps=800, **options):
    """Whether the first stage's path on w^2/2 grows in its last third."""
    walked = path(method, steps, lambda w, t: w**2 / 2, rate=rate, **options)[0][:, 0].abs()
    third = steps // 3
    return not walked[-third:].max() < walked[-2 * third : -third].max()


def has_edge(make, edge, **options):
    """Whether a new method `make()` is stable 3 % below `edge`, rate times curvature, and unstable 3 % above."""
    return not grows(make(), 0.97 * edge, **options) and grows(make(), 1.03 * edge, **options)
