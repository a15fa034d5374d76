"""Plain warm-up: asynchronous, with one linear warm-up of the rate for all stages. What T1 must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Asynchronous
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.settings import bounded


class PlainWarmup(Asynchronous):
    """w_{t+1} = w_t - alpha_t * optimizer(grad f_t(w_v, w_t)), alpha_t = alpha_base(t) * min((t - M + 1)/K, 1).

    The reads are those of PipeMare; the rate rises linearly over K = `ramp_steps` from step M on, at all stages alike.
    T1 lowers each stage's rate by its own delay over as many steps: the two together tell what knowing the delay is
    worth. `ramp_epochs` gives K in epochs. Weight memory W; no memory of its own.
    """

    name = "plain_warmup"
    title = "Plain warm-up"
    order = 14
    reference = "Goyal et al., Accurate, large minibatch SGD, 2017 (arXiv 1706.02677), for the linear warm-up"
    study = "methods"
    takes = (T3, RECOMPUTATION, RUNTIME)
    cannot = {
        T1: "both are factors of the rate over the same steps, and their product would be neither",
        T2: "this is the baseline of T1 alone; with T2 the baseline would be method.name=pipemare with T2",
    }
    costs = {"plain_warmup": Costs()}

    @dataclass(frozen=True)
    class Options:
        """K, in steps, or in epochs where that is set."""

        ramp_steps: int = bounded(100, low=0)
        ramp_epochs: float | None = bounded(None, above=0.0)

    @classmethod
    def resolved(cls, options: Any, steps_per_epoch: int) -> dict[str, Any]:
        if options.ramp_epochs is None:
            return {}
        return {"ramp_steps": round(options.ramp_epochs * steps_per_epoch), "ramp_epochs": None}

    def rate_factors(self, step: int) -> list[float]:
        since, length = step - self.warmup_steps, self.options.ramp_steps
        risen = min((since + 1) / length, 1.0) if since >= 0 and length else 1.0
        return [risen] * self.stages
