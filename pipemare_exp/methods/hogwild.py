"""Hogwild!-style training: every stage reads weights that are late by a random number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Method, rescheduled
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.settings import bounded, choice

if TYPE_CHECKING:
    from torch import Tensor


def truncated_exponential(uniform: Tensor, scale: Tensor, bound: Tensor) -> Tensor:
    """Draws from the exponential of mean `scale` truncated to [0, bound], by its inverse distribution function at
    `uniform` in [0, 1): -mu log(1 - u (1 - e^(-d_max/mu))). Zero where the bound is."""
    import torch

    safe = scale.clamp(min=torch.finfo(scale.dtype).tiny)
    return torch.where(bound > 0, -safe * torch.log1p(uniform * torch.expm1(-bound / safe)), 0.0)


def truncated_mean(scale: float, bound: float) -> float:
    """Mean of that law: mu - d_max / (e^(d_max/mu) - 1)."""
    if bound <= 0:
        return 0.0
    ratio = bound / scale
    return scale - bound * math.exp(-ratio) / -math.expm1(-ratio)  # e^ratio itself may overflow


def rounded_mean(scale: float, bound: float) -> float:
    """Mean of that law after rounding to the nearest whole number: the sum over k = 1, 2, ... of P(x > k - 1/2).

    Below the unrounded mean where delays are short: for `scale` 0.1 and `bound` 1 it is 0.007, of 0.1.
    """
    if bound <= 0:
        return 0.0
    # P(x > a) = (e^(-a/mu) - e^(-d_max/mu)) / (1 - e^(-d_max/mu))
    whole = -math.expm1(-bound / scale)
    tails = (math.exp(-a / scale) * -math.expm1(-(bound - a) / scale) for a in _half_numbers(bound))
    return sum(tails) / whole


def _half_numbers(bound: float) -> list[float]:
    """1/2, 3/2, ... below `bound`."""
    return [k + 0.5 for k in range(math.ceil(bound)) if k + 0.5 < bound]


NEAREST, STOCHASTIC = "nearest", "stochastic"


def mean_delay(scale: float, bound: float, rounding: str = NEAREST) -> float:
    """The mean of the whole delays that are drawn: stochastic rounding keeps that of the law."""
    return truncated_mean(scale, bound) if rounding == STOCHASTIC else rounded_mean(scale, bound)


class Hogwild(Method):
    """Forward reads w_{t-d}, d a random delay of its own for every step (or microbatch) and stage.

    d is a draw x from an exponential of scale mu_i truncated to [0, d_max,i], made whole by `rounding`: to the nearest
    number, which makes short delays shorter still (of a mean of 0.1 it leaves 0.007), or to one of the two beside it at
    random, up with probability x - floor(x), which keeps the mean. tau_i is the delay that the stage
    has in an asynchronous pipeline. Versions are clamped at M = `warmup_steps`, before which training is synchronous
    and nothing is drawn. T1 (`lr_rescheduling_steps` = K > 0) takes the mean of the law before rounding for tau_i; with
    stochastic rounding that is the mean of the delays, too.

    Emulator only: no pipeline has such delays. Weight memory: W and d_max,i past versions of each stage.
    """

    name = "hogwild"
    title = "Hogwild!-style"
    order = 3
    reference = (
        "Niu et al., Hogwild!, NeurIPS 2011; the truncated exponential is the model of Mitliagkas et al. 2016 that "
        "Yang et al. 2021 use"
    )
    synchronous = False
    takes = (T1, T3)
    cannot = {
        T2: "the delays are random, so there is no d to extrapolate over",
        RECOMPUTATION: "random delays have no schedule with slots to recompute in",
        RUNTIME: "its delays are drawn at random, and a real pipeline has the delays that it has",
    }
    study = "hogwild"

    @dataclass(frozen=True)
    class Options:
        """The law of the delays: its mean is mu_i = `delay_scale` * tau_i, its bound d_max,i = `max_delay` or, where
        that is None, ceil(3 mu_i)."""

        delay_scale: float = bounded(1.0, low=0.0)
        max_delay: int | None = bounded(low=0)
        backward: str = choice("same", "same", "current")
        """The version that a backward reads: the forward's, or the current one."""
        draw: str = choice("step", "step", "microbatch")
        """One delay for all microbatches of a step, or one for each."""
        rounding: str | None = choice(None, NEAREST, STOCHASTIC)
        """How a delay is made whole; None is nearest."""

    @staticmethod
    def _laws(tau: Sequence[float], options: Options) -> tuple[list[float], list[int]]:
        """(mu_i, d_max,i) of every stage."""
        scales = [options.delay_scale * delay for delay in tau]
        bounds = [math.ceil(3 * mu) if options.max_delay is None else options.max_delay for mu in scales]
        return scales, [bound if mu > 0 else 0 for mu, bound in zip(scales, bounds, strict=True)]

    @classmethod
    def drawn_delays(cls, tau: Sequence[float], options: Options) -> list[float]:
        pairs = zip(*cls._laws(tau, options), strict=True)
        return [mean_delay(mu, bound, options.rounding or NEAREST) for mu, bound in pairs]

    def prepare(self, weights: Sequence[Tensor]) -> None:
        import torch

        from pipemare_exp.seeding import generator

        scales, self.bounds = self._laws(self.tau, self.options)
        self.mean_delays = [truncated_mean(mu, bound) for mu, bound in zip(scales, self.bounds, strict=True)]
        self._scales = torch.tensor(scales, dtype=torch.float64)
        self._bounds = torch.tensor(self.bounds, dtype=torch.float64)
        self._generator = generator("cpu", self.seed, "hogwild")
        self._drawn: tuple[int, list[list[int]]] = (-1, [])

    def delays_at(self, step: int) -> list[list[int]]:
        """The delays drawn for `step`, in steps: one list over stages per microbatch. Steps must come in order."""
        if self._drawn[0] != step:
            import torch

            rows = self.microbatches if self.options.draw == "microbatch" else 1
            uniform = torch.rand(rows, self.stages, dtype=torch.float64, generator=self._generator)
            delays = self._whole(truncated_exponential(uniform, self._scales, self._bounds)).tolist()
            self._drawn = (step, delays * (self.microbatches // rows))
        return self._drawn[1]

    def _whole(self, delays: Tensor) -> Tensor:
        if self.options.rounding != STOCHASTIC:
            return delays.round().long()
        import torch

        below = delays.floor()
        draws = torch.rand(delays.shape, dtype=torch.float64, generator=self._generator)
        return (below + (draws < delays - below)).long()

    def forward(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().forward(step, microbatch)
        return [Read(max(self.warmup_steps, step - delay)) for delay in self.delays_at(step)[microbatch]]

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch) if self.options.backward == "same" else super().backward(step, microbatch)

    def depths(self) -> list[int | None]:
        return [bound if bound > 0 else None for bound in self.bounds]

    def rate_factors(self, step: int) -> list[float]:
        return rescheduled(self.mean_delays, step - self.warmup_steps, self.lr_rescheduling_steps)

    def state_dict(self) -> dict:
        return super().state_dict() | {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._generator.set_state(state["generator"])
        self._drawn = (-1, [])
