"""Hogwild!-style delays in the emulator against the slow reference, with the same draws; and checkpoints."""

import copy
import io
import math
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import nn

from pipemare_exp import methods
from pipemare_exp.pipeline.shape import Shape
from tests.pipeline.probes import Chain, Prescribed, one
from tests.pipeline.reference import SGD, Rule, Trainer, dense_gradient
from tests.pipeline.toys import cut, dense_net, emulator, loss, minibatches, mixed_net, named_units, same

STEPS = 40
ZERO = torch.zeros(1, dtype=torch.float64)


@dataclass(frozen=True)
class Drawn(Rule):
    """Forward reads max(M, t - d); `late[t][n][s]` are the drawn d, `means` the truncated laws' for T1."""

    late: dict = field(default_factory=dict)
    means: tuple = ()
    stale_backward: bool = True

    def delay(self, stage):
        return self.means[stage]

    def forward_version(self, step, n, stage):
        return step if step < self.warmup else max(self.warmup, step - self.late[step][n][stage])

    def backward_version(self, step, n, stage):
        return self.forward_version(step, n, stage) if self.stale_backward else step


def mean(scale, limit):
    return scale - limit / (math.exp(limit / scale) - 1) if scale else 0.0


def described(stages, N, slots, K, M, backward, draw):
    """The rule with the draws of a method of its own, seeded alike."""
    copied = methods.build("hogwild", seed=6, warmup_steps=M, backward=backward, draw=draw)
    copied.bind(Shape(stages, N, slots), [torch.zeros(1)] * stages)
    scales = [(2 * (stages - s) - 1 if slots == "duplex" else stages - 1 - s) / N for s in range(stages)]
    means = tuple(mean(scale, math.ceil(3 * scale)) for scale in scales)
    late = {t: copied.delays_at(t) for t in range(M, M + STEPS)}
    return Drawn("hogwild", stages, N, slots, K, None, M, late, means, backward == "same")


@pytest.mark.parametrize("draw", ["step", "microbatch"])
@pytest.mark.parametrize("backward", ["same", "current"])
@pytest.mark.parametrize(
    "stages, N, slots, K, M", [(4, 2, "duplex", 0, 0), (4, 1, "alternating", 20, 5), (3, 3, "duplex", 12, 4)]
)
def test_against_the_reference(stages, N, slots, K, M, backward, draw):
    rule = described(stages, N, slots, K, M, backward, draw)
    net, optimizer = dense_net(), SGD(0.8, weight_decay=0.01)
    boundaries = [0, 1, 3] if stages == 3 else range(4)
    weights = {name: w.detach().clone() for name, w in net.named_parameters()}
    slow = Trainer(weights, cut(named_units(net), boundaries), rule, optimizer, dense_gradient)
    how = methods.build("hogwild", lr_rescheduling_steps=K, warmup_steps=M, backward=backward, draw=draw, seed=6)
    fast = emulator(net, torch.zeros(2, 5, dtype=torch.float64), boundaries, how, optimizer, N, slots=slots)
    for step, minibatch in enumerate(minibatches((5,), N, STEPS)):
        got, expected = float(fast.step(minibatch, loss, 0.02)), slow.step(minibatch, 0.02)
        assert abs(got - expected) < 1e-10
        now = slow.weights()
        for s, flat in enumerate(fast.flat_weights()):
            whole = torch.cat([now[name].flatten() for name in slow.stages[s]])
            torch.testing.assert_close(flat, whole, rtol=0, atol=1e-10)
        assert fast.rates == pytest.approx([0.02 * rule.rate_factor(step, s) for s in range(stages)], rel=1e-12)
    ages = [t - version for t, _, s, version in slow.read if s == 0]
    assert len(set(ages)) >= 3  # it did read late weights, of several ages


@pytest.mark.parametrize("backward", ["same", "current"])
@pytest.mark.parametrize("draw", ["step", "microbatch"])
def test_versions_read_by_the_passes(draw, backward):
    """Version k of every weight is the number k. Empty microbatches keep the draws of the others."""
    stages, N, M, steps = 5, 3, 3, 30
    rule = described(stages, N, "duplex", 0, M, backward, draw)
    chain = Chain(stages)
    how = methods.build("hogwild", warmup_steps=M, backward=backward, draw=draw, seed=6)
    fast = emulator(chain, ZERO, range(stages), how, partial(Prescribed, path=float), N)
    chain.clear()
    order = [(step, n) for step in range(steps) for n in range(N) if (step + n) % 7 != 3]
    for step in range(steps):
        fast.step([ZERO if (step, n) in order else None for n in range(N)], one, 1.0)
    forward, back = chain.read("forward").T.tolist(), chain.read("backward").T.tolist()
    for (step, n), read, read_back in zip(order, forward, back, strict=True):
        assert read == [rule.forward_version(step, n, s) for s in range(stages)]
        assert read_back == (read if backward == "same" else [step] * stages)


@pytest.mark.parametrize("options", [{}, {"max_delay": 3}, {"delay_scale": 2.0}, {"max_delay": 0}], ids=str)
def test_it_keeps_as_many_versions_as_the_longest_delay(options):
    stages, N = 4, 2
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(stages)))
    fast = emulator(
        net, torch.zeros(2, 16), range(stages), methods.build("hogwild", **options), partial(torch.optim.SGD, lr=0.0), N
    )
    scale = options.get("delay_scale", 1.0)
    depths = [options.get("max_delay", math.ceil(3 * scale * (2 * (stages - s) - 1) / N)) for s in range(stages)]
    size = 4 * (16 * 16 + 16)
    assert fast.memory() == {
        "weights": stages * size,
        "gradients": stages * size,
        "history": sum((depth + 1) * size for depth in depths if depth),
        "buffers": 0,
        "rings": 0,
        "host": 0,
        "staged": 0,
    }


@pytest.mark.parametrize("draw, backward", [("step", "same"), ("microbatch", "current")])
def test_resume_bit_for_bit(draw, backward):
    """The generator's place is in the state: the same delays follow, through a file, in a new emulator."""

    def build(seed, net_seed):
        net = mixed_net(torch.float32, net_seed)
        how = methods.build("hogwild", lr_rescheduling_steps=6, warmup_steps=2, draw=draw, backward=backward, seed=seed)
        return net, emulator(net, torch.zeros(2, 2, 6, 6), range(6), how, SGD(0.9), 2, seed=3)

    def everything(net, fast):
        return copy.deepcopy({"model": dict(net.state_dict()), "emulator": fast.state_dict()})

    data = list(minibatches((2, 6, 6), 2, 14, torch.float32))
    net, fast = build(1, 0)
    saved, losses = {}, []
    for step, minibatch in enumerate(data):
        if step in (1, 2, 5, 11):
            saved[step] = io.BytesIO()
            torch.save(fast.state_dict(), saved[step])
        losses.append(fast.step(minibatch, loss, 0.02))
    for k, file in saved.items():
        file.seek(0)
        other_net, other = build(8, 99)  # even with another seed: the state decides
        for minibatch in data[: k + 1]:
            other.step(minibatch, loss, 0.02)
        other.load_state_dict(torch.load(file, weights_only=True))
        for minibatch, expected in zip(data[k:], losses[k:], strict=True):
            assert torch.equal(other.step(minibatch, loss, 0.02), expected), k
        assert same(everything(other_net, other), everything(net, fast)), k
