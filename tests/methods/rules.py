"""The slow trainer of tests/pipeline/reference.py under other rules, each written anew from its definition.

A rule says what the forward and the backward of a microbatch read of one parameter, and what becomes of gradients and
updates. All versions, and all states of the optimizer, are kept for ever. Nothing here is shared with the package
(but for Hogwild!'s draws, whose law has its own tests).
"""

import math

import torch

from pipemare_exp import methods
from pipemare_exp.pipeline.shape import Shape
from tests.pipeline.reference import Trainer


class Delayed(Trainer):
    """`forward_of` and `backward_of` give the weights of one parameter of stage s; here PipeDream's, both w_v."""

    def late(self, t, n, s):
        """v = max(M, floor((g - L_s)/N)); t in the warm-up."""
        N, M = self.rule.microbatches, self.rule.warmup
        return t if t < M else max(M, math.floor((t * N + n - self.rule.between(s)) / N))

    def warming(self, t):
        return t < self.rule.warmup

    def tau(self, s):
        return self.rule.between(s) / self.rule.microbatches

    def rate_factor(self, t, s):
        """T1."""
        M, K = self.rule.warmup, self.rule.rescheduling
        return 1.0 if t < M or t >= M + K else max(self.tau(s), 1.0) ** -(1 - (t - M) / K)

    def forward_of(self, t, n, s, name):
        return self.versions[self.late(t, n, s)][name]

    def backward_of(self, t, n, s, name):
        return self.forward_of(t, n, s, name)

    def _forward(self, t, n):
        return self._picked(self.forward_of, t, n)

    def _backward(self, t, n):
        return self._picked(self.backward_of, t, n)

    def _picked(self, read, t, n):
        return {name: read(t, n, s, name).clone() for s, names in enumerate(self.stages) for name in names}


def fixed(d):
    """Both passes read version t - d."""

    class Fixed(Delayed):
        def tau(self, s):
            return d

        def late(self, t, n, s):
            return t if self.warming(t) else max(self.rule.warmup, t - d)

    return Fixed


def fifo(d):
    """The gradient of step t - d enters update t; before there is one, zeros."""

    class Fifo(Delayed):
        def tau(self, s):
            return d

        def late(self, t, n, s):
            return t

        def _update(self, t, total, rate):
            self.waiting = [*getattr(self, "waiting", []), total]
            if self.warming(t):
                self.waiting = []
            elif len(self.waiting) > d:
                total = self.waiting.pop(0)
            else:
                total = {name: torch.zeros_like(g) for name, g in total.items()}
            super()._update(t, total, rate)

    return Fifo


class TwoVersions(Delayed):
    """2BW: version max(M, t - 1) everywhere."""

    def tau(self, s):
        return 1

    def late(self, t, n, s):
        return t if self.warming(t) else max(self.rule.warmup, t - 1)


class NoStash(Delayed):
    """Forward w_v, backward w_t."""

    def backward_of(self, t, n, s, name):
        return self.versions[t][name]


class Drawn(Delayed):
    """Hogwild!: delays as a method object of its own draws them, seeded alike; 0, and nothing drawn, in the warm-up."""

    def drawn(self, t):
        if not hasattr(self, "source"):
            rule = self.rule
            self.source = methods.build("hogwild", warmup_steps=rule.warmup)
            self.source.bind(Shape(rule.stages, rule.microbatches, rule.slots), [torch.zeros(1)] * rule.stages)
        return self.source.delays_at(t)[0]

    def tau(self, s):
        mu = super().tau(s)
        longest = math.ceil(3 * mu)
        return mu - longest / (math.exp(longest / mu) - 1)

    def late(self, t, n, s):
        return t if self.warming(t) else max(self.rule.warmup, t - self.drawn(t)[s])


class Ramp(NoStash):
    """The rate rises linearly over 12 steps from M on."""

    def rate_factor(self, t, s):
        M = self.rule.warmup
        return 1.0 if t < M else min((t - M + 1) / 12, 1)


class Predicted(NoStash):
    """Forward w_v - horizon * rate * direction, all of version v; here PipeOptim's horizon L_s/N, and backward w_t."""

    def direction(self, k, name):
        state = self.states[k][name]
        if "velocity" in state:
            return state["velocity"]
        (first, second), eps = self.optimizer.betas, self.optimizer.eps
        return state["m"] / (1 - first**k) / ((state["v"] / (1 - second**k)).sqrt() + eps)

    def ahead(self, k, s, name, horizon):
        w = self.versions[k][name]
        return w if k == 0 else w - horizon * self.rates[k - 1][s] * self.direction(k, name)

    def horizon(self, s):
        return self.tau(s)

    def forward_of(self, t, n, s, name):
        if self.warming(t):
            return self.versions[t][name]
        return self.ahead(self.late(t, n, s), s, name, self.horizon(s))


class Spec(Predicted):
    """SpecTrain in duplex slots: both passes aim at the backward at the first stage (s = 0)."""

    def horizon(self, s):
        return (self.rule.between(s) + s) / self.rule.microbatches

    def backward_of(self, t, n, s, name):
        return self.versions[t][name] if self.warming(t) else self.ahead(t, s, name, s / self.rule.microbatches)


class SpecStash(Predicted):
    """Version 2 in duplex slots: 2(P - s) backwards ahead, for both passes."""

    def horizon(self, s):
        return 2 * (self.rule.stages - s) / self.rule.microbatches

    def backward_of(self, t, n, s, name):
        return self.forward_of(t, n, s, name)


class Bellwether(Spec):
    """XPipe: the version is the one that microbatch 0 reads."""

    def late(self, t, n, s):
        return super().late(t, 0, s)


class Coasting(Predicted):
    """msnag: k steps of the optimizer with no gradient, one after the other (Adam's v held)."""

    def ahead(self, k, s, name, horizon):
        w = self.versions[k][name]
        if k == 0:
            return w
        steps, rate, state = int(self.tau(s) + 0.5), self.rates[k - 1][s], self.states[k][name]
        m = state.get("velocity", state.get("m"))
        for j in range(1, steps + 1):
            if "velocity" in state:
                m = self.optimizer.momentum * m
                w = w - rate * m
            else:
                first, second = self.optimizer.betas
                m = first * m
                scale = (state["v"] / (1 - second ** (k + j))).sqrt() + self.optimizer.eps
                w = w - rate * m / (1 - first ** (k + j)) / scale
        return w


class CoastingStash(Coasting):
    def backward_of(self, t, n, s, name):
        return self.forward_of(t, n, s, name)
