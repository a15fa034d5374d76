"""DC-ASGD: stashed weights, and gradients corrected to first order for what the weights moved meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipemare_exp.methods.pipedream import PipeDream
from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.settings import bounded

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.weights.history import History


class DCASGD(PipeDream):
    """Both passes read w_v; a microbatch's gradient g becomes g + lambda * g * g * (w_t - w_v); marked [code].

    g * g stands for the diagonal of the Hessian, so that this is the gradient at w_t to first order. It is done per
    microbatch, as the microbatches of a minibatch read two or more versions; g is a microbatch's share of the
    minibatch's gradient, so lambda grows with N where the effect shall not. lambda = `strength`; 0 is PipeDream. The
    default is their 0.04 for CIFAR-10 (recalled, not checked).

    Weight memory W and PipeDream's stash, and one more sum of gradients; utilization 1.
    """

    name = "dc_asgd"
    title = "DC-ASGD"
    order = 30
    reference = "Zheng et al., Asynchronous SGD with delay compensation, ICML 2017 (arXiv 1609.08326)"
    study = "methods"
    takes = (T1, T3, RECOMPUTATION, RUNTIME)
    cannot = {
        T2: "the backward reads the version that the forward read: the gradient is corrected, not the weights",
    }
    costs = {"dc_asgd": Costs(stash=1.0, buffers=1.0)}

    @dataclass(frozen=True)
    class Options:
        """`strength`: lambda."""

        strength: float = bounded(0.04, low=0.0)

    def by_microbatch(self) -> bool:
        return True

    def transform_microbatch(self, step: int, microbatch: int, gradients: Sequence[Tensor], history: History) -> None:
        if step < self.warmup_steps:
            return
        reads = self.forward(step, microbatch)
        for stage, gradient in enumerate(gradients):
            if gradient.numel():
                factor = self.strength(stage, gradient)
                if reads[stage].version != step:
                    moved = history.version(stage, step) - history.version(stage, reads[stage].version)
                    gradient.add_(moved.mul_(gradient).mul_(gradient).mul_(factor))

    def strength(self, stage: int, gradient: Tensor) -> Tensor | float:
        """lambda for this gradient of `stage`."""
        return self.options.strength


class AdaptiveDCASGD(DCASGD):
    """The same with lambda = lambda_0 / sqrt(s + eps), s <- m s + (1 - m) g * g for every microbatch; marked [code].

    lambda_0 = `strength`, m = `memory`, eps = 1e-7; s begins at 0 and the microbatch's own g is in it. Defaults: their
    2 and 0.95 for CIFAR-10 (recalled, not checked). Weight memory as DC-ASGD's and s, one W.
    """

    name = "dc_asgd_adaptive"
    title = "DC-ASGD, adaptive"
    order = 31
    costs = {"dc_asgd_adaptive": Costs(stash=1.0, buffers=2.0)}

    @dataclass(frozen=True)
    class Options:
        """`strength`: lambda_0. `memory`: m."""

        strength: float = bounded(2.0, low=0.0)
        memory: float = bounded(0.95, low=0.0, below=1.0)

    def prepare(self, weights: Sequence[Tensor]) -> None:
        super().prepare(weights)
        self.add_buffer("mean_square", weights, [True] * self.stages)

    def strength(self, stage: int, gradient: Tensor) -> Tensor | float:
        mean_square = self.buffers["mean_square"][stage]
        assert mean_square is not None
        m = self.options.memory
        mean_square.mul_(m).addcmul_(gradient, gradient, value=1.0 - m)
        return self.options.strength / (mean_square + 1e-7).sqrt_()
