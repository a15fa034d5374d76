"""Gap-aware: stashed weights, and gradients divided, per weight, by how far it has moved since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipemare_exp.methods.pipedream import PipeDream
from pipemare_exp.pipeline.method import T2
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.settings import bounded

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.weights.history import History
    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer


class GapAware(PipeDream):
    """Both passes read w_v; a microbatch's gradient, with its weight decay, is divided by C; marked [code].

        C = 1 + |w_t - w_v| / (alpha_max * (sqrt(s_t / (1 - m^t)) + eps))
        s_{t+1} = m s_t + (1 - m) u_t * u_t

    u_t is the direction of update t (SGD's momentum buffer, Adam's m_hat/(sqrt(v_hat) + eps)), alpha_max the stage's
    largest rate so far, m = `memory`, eps = 1e-8. C is 1 where nothing moved, and about 1 + d where the weight made d
    average steps at the largest rate. Weight decay that is added to the gradient is divided with it; AdamW's decoupled
    decay is no part of the gradient and is not. The default m = 0.95 is ours, not their published value.

    Weight memory W, PipeDream's stash, s and u (2 W), and one more sum of gradients; utilization 1.
    """

    name = "gap_aware"
    title = "Gap-aware"
    order = 32
    reference = "Barkai et al., Gap-aware mitigation of gradient staleness, ICLR 2020 (arXiv 1909.10802)"
    study = "methods"
    cannot = {
        T2: "the backward reads the version that the forward read: the gradient is damped, not the weights corrected"
    }
    costs = {"gap_aware": Costs(stash=1.0, buffers=3.0)}

    @dataclass(frozen=True)
    class Options:
        """`memory`: m."""

        memory: float = bounded(0.95, low=0.0, below=1.0)

    def prepare(self, weights: Sequence[Tensor]) -> None:
        super().prepare(weights)
        for name in ("direction", "mean_square"):
            self.add_buffer(name, weights, [True] * self.stages)
        self.largest_rates = [0.0] * self.stages

    def prepare_optimizer(self, optimizer: StageOptimizer) -> None:
        from pipemare_exp.pipeline.weights.stage_optimizer import check_direction

        check_direction(optimizer.name, f"method.name={self.name}")
        self._optimizer = optimizer

    def by_microbatch(self) -> bool:
        return True

    def transform_microbatch(self, step: int, microbatch: int, gradients: Sequence[Tensor], history: History) -> None:
        reads = self.forward(step, microbatch)
        for stage, gradient in enumerate(gradients):
            if not gradient.numel() or reads[stage].version == step:
                continue
            mean_square, direction = self.buffers["mean_square"][stage], self.buffers["direction"][stage]
            assert mean_square is not None and direction is not None
            now = history.version(stage, step).clone()
            gap = (now - history.version(stage, reads[stage].version)).abs_()
            usual = (mean_square / (1.0 - self.options.memory**step)).sqrt_().add_(1e-8).mul_(self.largest_rates[stage])
            divisor = gap.div_(usual).nan_to_num_(nan=0.0).add_(1.0)  # 0/0: at rate 0 nothing moved
            decay = self._decay_share(stage, now, gradient)
            gradient.add_(decay).div_(divisor).sub_(decay)

    def _decay_share(self, stage: int, weights: Tensor, gradient: Tensor) -> Tensor:
        """A microbatch's share of what the optimizer will add to the gradient as weight decay."""
        import torch

        share = torch.zeros_like(gradient)
        if self._optimizer.name != "AdamW":
            for group in self._optimizer.groups(stage):
                for parameter in group["params"]:
                    place = self._optimizer.part(stage, parameter, share)
                    place.add_(
                        self._optimizer.part(stage, parameter, weights),
                        alpha=group["weight_decay"] / self.microbatches,
                    )
        return share

    def update(self, step: int, optimizer: StageOptimizer) -> None:
        super().update(step, optimizer)
        for stage, rate in enumerate(optimizer.rates):
            mean_square, direction = self.buffers["mean_square"][stage], self.buffers["direction"][stage]
            if mean_square is not None and direction is not None and mean_square.numel():
                optimizer.direction(stage, direction)
                mean_square.mul_(self.options.memory).addcmul_(direction, direction, value=1.0 - self.options.memory)
                self.largest_rates[stage] = max(self.largest_rates[stage], rate)

    def state_dict(self) -> dict:
        return super().state_dict() | {"largest_rates": list(self.largest_rates)}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.largest_rates = list(state["largest_rates"])
