"""The largest stable rate of delayed gradient descent, measured with the emulator, is the one that is proved.

f(w) = lambda w^2 / 2 with gradients tau steps old is stable iff alpha <= (2/lambda) sin(pi/(4 tau + 2)).
"""

import math

import torch
from torch import nn

from pipemare_exp import methods
from tests.pipeline.toys import emulator

DELAYS = {0: 9, 3: 3, 4: 1}  # stage of a duplex pipeline of 5 stages, N = 1 -> its delay in steps
STEPS = 8000


class Quadratics(nn.Module):
    """Each stage holds two numbers w and returns them: independent problems in one pipeline."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Linear(1, 2, bias=False, dtype=torch.float64) for _ in range(5))
        for module in self.stages:
            nn.init.ones_(module.weight)

    def forward(self, x):
        return torch.stack([module(x) for module in self.stages])


def test_edge_of_stability():
    """At 0.99 of the edge the envelope shrinks over 8,000 steps, at 1.01 it grows; three delays at once."""
    alpha = 0.01
    curvature = torch.zeros(5, 2, dtype=torch.float64)
    for stage, tau in DELAYS.items():  # lambda such that alpha is 0.99 and 1.01 of the edge
        edge = 2 * math.sin(math.pi / (4 * tau + 2))
        curvature[stage] = torch.tensor([0.99, 1.01]) * edge / alpha
    net = Quadratics()
    x = torch.ones(1, dtype=torch.float64)
    fast = emulator(net, x, range(5), methods.build("pipemare"), lambda g: torch.optim.SGD(g, foreach=True), 1)

    def loss(model, given):
        return (0.5 * curvature * model(given) ** 2).sum()

    path = []
    for _ in range(STEPS):
        fast.step([x], loss, alpha)
        path.append(torch.stack([net.stages[s].weight.detach()[:, 0].clone() for s in DELAYS]))
    size = torch.stack(path).abs()  # [step, delay, (0.99, 1.01)]
    windows = size.reshape(8, STEPS // 8, len(DELAYS), 2).amax(1)
    assert (windows[1:, :, 0] < windows[:-1, :, 0]).all()
    assert (windows[1:, :, 1] > windows[:-1, :, 1]).all()
    # and at the speed of the characteristic polynomial's largest root
    for column, tau in enumerate(DELAYS.values()):
        for which in (0, 1):
            lam = float(curvature[{9: 0, 3: 3, 1: 4}[tau], which])
            polynomial = torch.zeros(tau + 1, tau + 1, dtype=torch.float64)  # companion of z^(tau+1) - z^tau + a lambda
            polynomial[0, 0], polynomial[0, -1] = 1.0, -alpha * lam
            polynomial[1:, :-1] += torch.eye(tau)
            root = torch.linalg.eigvals(polynomial).abs().max()
            measured = (windows[6, column, which] / windows[2, column, which]).log() / (4 * STEPS / 8)
            assert abs(float(measured - root.log())) < 2e-5
