"""msnag: the forward reads the weights after k more steps of the optimizer in which the gradient is zero."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pipemare_exp.pipeline.predicting import Predicting
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.weights.reads import Read

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer


class Msnag(Predicting):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_v - D_v, w_t)), D_v: k_i steps with no gradient; marked [code].

    SGD with momentum b:   D = rate * m * (b - b^{k+1}) / (1 - b), which is 0 without momentum
    Adam, AdamW:           D = sum over j = 1..k of rate * b1^j m/(1 - b1^{c+j}) / (sqrt(v/(1 - b2^{c+j})) + eps)

    c counts the updates made. k_i is the whole number nearest to tau_i (ours; theirs is P - i with N = 1). The rate is
    that of the last update in all k steps (ours; they take the schedule's coming rates).

    Exact where the gradient is zero and momentum is left. Weight memory W and D, one W; utilization 1.
    """

    name = "msnag"
    title = "msnag"
    order = 24
    reference = "Eliad et al., Fine-tuning giant neural networks on commodity hardware (FTPipe), USENIX ATC 2021"
    costs = {"msnag": Costs(buffers=1.0)}

    def horizons(self) -> tuple[list[float], list[float]]:
        self.steps_ahead = [math.floor(tau + 0.5) for tau in self.tau]
        return [float(k > 0) for k in self.steps_ahead], [0.0] * self.stages

    def displace(self, stage: int, optimizer: StageOptimizer, out: Tensor) -> None:
        out.zero_()
        k, rate = self.steps_ahead[stage], optimizer.rates[stage]
        for group in optimizer.groups(stage):
            for parameter in group["params"]:
                state, place = optimizer.torch.state[parameter], optimizer.part(stage, parameter, out)
                if optimizer.name != "SGD":
                    self._adam(group, state, k, place)
                elif group["momentum"]:
                    beta = group["momentum"]
                    place.add_(state["momentum_buffer"], alpha=(beta - beta ** (k + 1)) / (1.0 - beta))
        out.mul_(rate)

    @staticmethod
    def _adam(group: dict, state: dict, k: int, place: Tensor) -> None:
        count, (first, second) = float(state["step"]), group["betas"]
        for j in range(1, k + 1):
            scale = (state["exp_avg_sq"] / (1.0 - second ** (count + j))).sqrt_().add_(group["eps"])
            place.addcdiv_(state["exp_avg"], scale, value=first**j / (1.0 - first ** (count + j)))


class MsnagStash(Msnag):
    """The same with the forward's prediction kept for the backward: both read w_v - D_v; marked [code].

    Weight memory W, D (one W) and the predictions in flight, as PipeDream's stash; utilization 1.
    """

    name = "msnag_stash"
    title = "msnag with stash"
    order = 25
    costs = {"msnag_stash": Costs(stash=1.0, buffers=1.0)}
    keeps_predictions = True

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)

    def depths(self) -> list[int | None]:
        depths = super().depths()
        return [1 if predicts else depth for predicts, depth in zip(self._predicts, depths, strict=True)]
