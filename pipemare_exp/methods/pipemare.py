"""PipeMare: asynchronous pipeline without a stash, with T1, T2 and T3 each switchable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipemare_exp.errors import UserError
from pipemare_exp.pipeline.method import Asynchronous
from pipemare_exp.pipeline.reads import Read


class PipeMare(Asynchronous):
    """w_{t+1} = w_t - alpha_{t,i} * optimizer(grad f_t(w_v, u_bkwd)): forward reads w_v, backward w_t or its estimate.

    T1 (`lr_rescheduling_steps` = K > 0): alpha_{t,i} = alpha_base(t) / max(tau_i, 1)^p, p = 1 - min((t-M)/K, 1), from
    step M on.

    T2 (`decay` = D in (0, 1)): delta_{t+1} = gamma_i delta_t + (1 - gamma_i)(w_{t+1} - w_t), delta_0 = 0,
    gamma_i = D^(1/d_i), d_i = tau_i (tau_bkwd is 0); the backward reads u_bkwd = w_t - d_i delta_t. One more W of
    memory for the stages with d_i > 0. delta is updated in the warm-up too.

    T3 (`warmup_steps` = M): steps before M are synchronous; then the pipeline refills.

    Reference: Yang et al., "PipeMare", MLSys 2021 (arXiv 1910.05124).
    """

    def __init__(
        self, lr_rescheduling_steps: int = 0, decay: float | None = None, warmup_steps: int = 0
    ) -> None:
        super().__init__(warmup_steps)
        if decay is not None and not 0.0 < decay < 1.0:
            raise UserError(
                f"discrepancy_correction.decay={decay}: D must lie between 0 and 1 (both excluded); the default is "
                "e^-2 = 0.1353"
            )
        self.lr_rescheduling_steps = lr_rescheduling_steps
        self.decay = decay
        parts = ["t1"] * (lr_rescheduling_steps > 0) + ["t2"] * (decay is not None) + ["t3"] * (warmup_steps > 0)
        self.label = "+".join(parts) or "async"

    def bind(self, stages: int, microbatches: int, slots: str, weights: Sequence[Tensor]) -> None:
        super().bind(stages, microbatches, slots, weights)
        if self.decay is None:
            return
        self.gammas = [self.decay ** (1.0 / tau) if tau > 0 else 0.0 for tau in self.tau]
        self.buffers["delta"] = [
            torch.zeros_like(flat) if tau > 0 else None for flat, tau in zip(weights, self.tau, strict=True)
        ]

    def backward(self, step: int, microbatch: int) -> list[Read]:
        if self.decay is None or step < self.warmup_steps:
            return super().backward(step, microbatch)
        return [Read(step, -tau, "delta") if tau > 0 else Read(step) for tau in self.tau]

    def rate_factors(self, step: int) -> list[float]:
        since = step - self.warmup_steps
        if since < 0 or since >= self.lr_rescheduling_steps:
            return super().rate_factors(step)
        power = 1.0 - since / self.lr_rescheduling_steps
        return [max(tau, 1.0) ** -power for tau in self.tau]

    def tracks(self) -> list[bool]:
        return [self.decay is not None and tau > 0 for tau in self.tau]

    def updated(self, step: int, changes: Sequence[Tensor | None]) -> None:
        if self.decay is None:
            return
        for delta, gamma, change in zip(self.buffers["delta"], self.gammas, changes, strict=True):
            if delta is not None and change is not None:
                delta.lerp_(change, 1.0 - gamma)
