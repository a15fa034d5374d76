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


class Hogwild(Method):
    """Forward reads w_{t-d}, d a random delay of its own for every step (or microbatch) and stage.

    d is a draw from an exponential of scale mu_i truncated to [0, d_max,i], rounded; tau_i is the delay that the stage
    has in an asynchronous pipeline. Versions are clamped at M = `warmup_steps`, before which training is synchronous
    and nothing is drawn. T1 (`lr_rescheduling_steps` = K > 0) takes the mean of the truncated law for tau_i.

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

    def prepare(self, weights: Sequence[Tensor]) -> None:
        import torch

        from pipemare_exp.seeding import generator

        longest = self.options.max_delay
        scales = [self.options.delay_scale * tau for tau in self.tau]
        bounds = [math.ceil(3 * mu) if longest is None else longest for mu in scales]
        self.bounds = [bound if mu > 0 else 0 for mu, bound in zip(scales, bounds, strict=True)]
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
            delays = truncated_exponential(uniform, self._scales, self._bounds).round().long().tolist()
            self._drawn = (step, delays * (self.microbatches // rows))
        return self._drawn[1]

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
