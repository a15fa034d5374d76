"""Asynchronous Nesterov: stashed weights and an optimizer that looks ahead with much momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipemare_exp.errors import UserError
from pipemare_exp.methods.pipedream import PipeDream
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.settings import bounded

if TYPE_CHECKING:
    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer


class Nesterov(PipeDream):
    """Both passes read w_v; the update is NAdam's with decoupled weight decay (optimizer=nadamw); marked [code].

    This is the practice of their paper; its theory has w_{t+1} = w_t + d_t - alpha (1 - gamma_t) grad(w_{t-tau} +
    d_{t-tau}), d_t = gamma_t (w_t - w_{t-1}). NAdam has beta1 = 0.99 and momentum decay 0.004, as in
    configs/optimizer/nadamw.yaml.
    `by_stage`: beta1 of stage s = 0.9 + 0.09 (P-1-s)/P, s = i - 1. `rate_power`: the rate is alpha / max(tau_i, 1)^rho.
    Their delays are those of alternating slots. Their table compares equal tokens, with four times more updates than
    their GPipe baseline makes; figures here compare equal minibatches.

    Weight memory W and PipeDream's stash; utilization 1.
    """

    name = "nesterov"
    title = "Asynchronous Nesterov"
    order = 33
    reference = (
        "Ajanthan et al., Nesterov method for asynchronous pipeline parallel optimization, ICML 2025 (arXiv 2505.01099)"
    )
    study = "methods"
    costs = {"nesterov": Costs(stash=1.0)}

    @dataclass(frozen=True)
    class Options:
        """`by_stage`: whether beta1 falls towards the last stage. `rate_power`: rho; 0 leaves the rate alone."""

        by_stage: bool = False
        rate_power: float = bounded(0.0, low=0.0)

    def prepare_optimizer(self, optimizer: StageOptimizer) -> None:
        if optimizer.name != "NAdam":
            raise UserError(
                f"method.name={self.name} with the optimizer {optimizer.name}: the method is NAdam's look-ahead on "
                "stashed weights; take optimizer=nadamw"
            )
        if self.options.by_stage:
            for stage in range(self.stages):
                for group in optimizer.groups(stage):
                    group["betas"] = (0.9 + 0.09 * (self.stages - 1 - stage) / self.stages, group["betas"][1])

    def rate_factors(self, step: int) -> list[float]:
        rescheduled = super().rate_factors(step)
        if step < self.warmup_steps:
            return rescheduled
        own = [max(tau, 1.0) ** -self.options.rate_power for tau in self.tau]
        return [factor * mine for factor, mine in zip(rescheduled, own, strict=True)]
