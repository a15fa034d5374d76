"""T2's estimate of the weights that the forward read, on weights made to drift along a given path."""

import math
from functools import partial

import pytest
import torch

from pipemare_exp import methods
from tests.pipeline.probes import Chain, Prescribed, one
from tests.pipeline.toys import emulator

ZERO = torch.zeros(1, dtype=torch.float64)


def estimates(path, stages, N, decay, steps, slots="duplex", warmup=0):
    """What the backward read, [stage, step], while version k of every weight is path(k); and the emulator."""
    chain = Chain(stages)
    for module in chain.stages:
        torch.nn.init.constant_(module.weight, path(0))
    fast = emulator(
        chain,
        ZERO,
        range(stages),
        methods.build("pipemare", decay=decay, warmup_steps=warmup),
        partial(Prescribed, path=path),
        N,
        slots=slots,
    )
    chain.clear()
    for _ in range(steps):
        fast.step([ZERO] * N, one, 1.0)
    read = chain.read("backward").reshape(stages, steps, N)
    assert (read == read[:, :, :1]).all()  # one estimate for all microbatches of a step
    return read[:, :, 0], fast


def delays(stages, N, slots="duplex"):
    return [(2 * (stages - s) - 1 if slots == "duplex" else stages - 1 - s) / N for s in range(stages)]


@pytest.mark.parametrize("decay", [0.01, math.exp(-2), 0.5, 0.75])
@pytest.mark.parametrize("stages, N, slots", [(5, 1, "duplex"), (4, 3, "duplex"), (4, 1, "alternating")])
def test_linear_drift_is_estimated_exactly(stages, N, slots, decay):
    """Once gamma^t has died out, u = w(t - d), whatever gamma; before, d * slope * gamma^t is missing."""
    start, slope = 3.0, 0.25
    steps = 60 + int(40 * max(delays(stages, N, slots)) / -math.log(decay))
    read, _ = estimates(lambda k: start + slope * k, stages, N, decay, steps, slots)
    t = torch.arange(steps, dtype=torch.float64)
    for s, d in enumerate(delays(stages, N, slots)):
        left = decay ** (t / d) if d else torch.zeros_like(t)
        torch.testing.assert_close(read[s], start + slope * (t - d * (1 - left)), rtol=1e-12, atol=1e-12)
        assert abs(read[s, -1] - (start + slope * (steps - 1 - d))) < 1e-10


@pytest.mark.parametrize("stages, N, stage", [(2, 1, 0), (5, 1, 0), (5, 1, 2), (6, 2, 1), (6, 4, 2)])
def test_quadratic_drift_is_estimated_exactly_by_one_decay(stages, N, stage):
    """gamma = 1 - 2/(d+1), that is D = gamma^d, and only that one: others are off by a constant."""
    d = delays(stages, N)[stage]
    assert d > 1
    gamma = 1 - 2 / (d + 1)

    def path(k):
        return 1.0 - 0.5 * k + 0.125 * k * k

    steps = 60 + int(40 / -math.log(gamma))
    read, _ = estimates(path, stages, N, gamma**d, steps)
    for t in range(steps - 20, steps):
        assert float(read[stage, t]) == pytest.approx(path(t - d), abs=1e-8, rel=1e-11)
    for other in (gamma / 2, (1 + gamma) / 2):
        steps = 60 + int(40 / -math.log(other))
        read, _ = estimates(path, stages, N, other**d, steps)
        # delta averages steps of mean age 1/(1-gamma): the error is 2c d (1/(1-gamma) - (d+1)/2), c = 0.125
        error = 2 * 0.125 * d * (1 / (1 - other) - (d + 1) / 2)
        assert float(read[stage, -1]) - path(steps - 1 - d) == pytest.approx(error, rel=1e-6)
        assert abs(error) > 0.05


def test_default_decay_is_the_limit_of_the_exact_ones():
    """gamma^d -> e^-2 for long delays: D = 0.1353."""
    assert abs((1 - 2 / 1001) ** 1000 - math.exp(-2)) < 1e-6


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("decay", [0.1353, 0.6])
def test_recursion(decay, warmup):
    """delta_{t+1} = gamma delta_t + (1-gamma)(w_{t+1} - w_t) from 0, also in the warm-up, which reads w_t."""
    draw = torch.Generator().manual_seed(0)
    path = torch.randn(31, generator=draw, dtype=torch.float64).cumsum(0).tolist()
    read, _ = estimates(lambda k: path[k], 4, 3, decay, 30, warmup=warmup)
    for s, d in enumerate(delays(4, 3)):
        gamma, delta = decay ** (1 / d), 0.0
        for t in range(30):
            expected = path[t] - d * delta if t >= warmup else path[t]
            assert float(read[s, t]) == pytest.approx(expected, rel=1e-12, abs=1e-12)
            delta = gamma * delta + (1 - gamma) * (path[t + 1] - path[t])


def test_no_correction_without_delay():
    """The last stage of an alternating pipeline has d = 0: it reads w_t itself, and keeps no buffer."""
    read, fast = estimates(lambda k: 0.5 * k * k, 3, 2, 0.2, 10, "alternating")
    assert read[2].tolist() == [0.5 * k * k for k in range(10)]
    _, every = estimates(lambda k: 0.5 * k * k, 3, 2, 0.2, 1)
    assert fast.memory()["buffers"] * 3 == every.memory()["buffers"] * 2
