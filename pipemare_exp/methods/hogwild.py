"""Hogwild!-style training: every stage reads weights that are late by a random number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.pipeline.method import Method, check_steps, rescheduled
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.seeding import generator

BACKWARDS = ("same", "current")
DRAWS = ("step", "microbatch")


def truncated_exponential(uniform: Tensor, scale: Tensor, bound: Tensor) -> Tensor:
    """Draws from the exponential of mean `scale` truncated to [0, bound], by its inverse distribution function at
    `uniform` in [0, 1): -mu log(1 - u (1 - e^(-d_max/mu))). Zero where the bound is."""
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

    d is a draw from an exponential of scale mu_i truncated to [0, d_max,i], rounded. mu_i = `delay_scale` * tau_i
    (tau_i the delay that the stage has in an asynchronous pipeline), d_max,i = `max_delay` or ceil(3 mu_i). Versions
    are clamped at M = `warmup_steps`, before which training is synchronous and nothing is drawn.

    - `backward`: "same" reads the forward's version, "current" reads w_t;
    - `draw`: "step" has one delay for all microbatches of a step, "microbatch" one for each;
    - T1 (`lr_rescheduling_steps` = K > 0) takes the mean of the truncated law for tau_i.

    Emulator only: no pipeline has such delays. Weight memory: W and d_max,i past versions of each stage. Recomputation
    is refused: it has a place in a schedule's slots, and random delays have no schedule.

    Reference: Niu et al., "Hogwild!", NeurIPS 2011; the truncated exponential is the model of Mitliagkas et al. 2016
    that Yang et al. 2021 use.
    """

    synchronous = False
    unscheduled = "its delays are drawn at random, and no pipeline has such delays"
    cannot = {"decay": "T2 extrapolates over a delay that is known, and these are random"}

    def __init__(
        self,
        lr_rescheduling_steps: int = 0,
        warmup_steps: int = 0,
        delay_scale: float = 1.0,
        max_delay: int | None = None,
        backward: str = "same",
        draw: str = "step",
        seed: int = 0,
    ) -> None:
        check_steps(lr_rescheduling_steps=lr_rescheduling_steps, warmup_steps=warmup_steps)
        for name, value, allowed in (("backward", backward, BACKWARDS), ("draw", draw, DRAWS)):
            if value not in allowed:
                raise UserError(f"method.hogwild.{name}={value}: one of {', '.join(allowed)}{suggest(value, allowed)}")
        if not 0 <= delay_scale < math.inf:
            raise UserError(f"method.hogwild.delay_scale={delay_scale}: a number of at least 0 multiplies the delays")
        if max_delay is not None and not (isinstance(max_delay, int) and max_delay >= 0):
            raise UserError(
                f"method.hogwild.max_delay={max_delay}: null (ceil of 3 mean delays) or a whole number of steps"
            )
        self.lr_rescheduling_steps, self.warmup_steps = lr_rescheduling_steps, warmup_steps
        self.delay_scale, self.max_delay = delay_scale, max_delay
        self.backward_reads, self.draw, self.seed = backward, draw, seed
        self.label = "hogwild+t1" if lr_rescheduling_steps > 0 else "hogwild"

    def prepare(self, weights: Sequence[Tensor]) -> None:
        if self.segment is not None:
            raise UserError("recomputation with method hogwild: random delays have no slots to recompute in")
        scales = [self.delay_scale * tau for tau in self.tau]
        bounds = [math.ceil(3 * mu) if self.max_delay is None else self.max_delay for mu in scales]
        self.bounds = [bound if mu > 0 else 0 for mu, bound in zip(scales, bounds, strict=True)]
        self.mean_delays = [truncated_mean(mu, bound) for mu, bound in zip(scales, self.bounds, strict=True)]
        self._scales = torch.tensor(scales, dtype=torch.float64)
        self._bounds = torch.tensor(self.bounds, dtype=torch.float64)
        self._generator = generator("cpu", self.seed, "hogwild")
        self._drawn: tuple[int, list[list[int]]] = (-1, [])

    def delays_at(self, step: int) -> list[list[int]]:
        """The delays drawn for `step`, in steps: one list over stages per microbatch. Steps must come in order."""
        if self._drawn[0] != step:
            rows = self.microbatches if self.draw == "microbatch" else 1
            uniform = torch.rand(rows, self.stages, dtype=torch.float64, generator=self._generator)
            delays = truncated_exponential(uniform, self._scales, self._bounds).round().long().tolist()
            self._drawn = (step, delays * (self.microbatches // rows))
        return self._drawn[1]

    def forward(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().forward(step, microbatch)
        return [Read(max(self.warmup_steps, step - delay)) for delay in self.delays_at(step)[microbatch]]

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch) if self.backward_reads == "same" else super().backward(step, microbatch)

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
