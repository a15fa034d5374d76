"""PipeMare: asynchronous pipeline without a stash, with T1, T2 and T3 each switchable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipemare_exp.pipeline.method import T2, Asynchronous
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.schedule.versions import history_depth
from pipemare_exp.pipeline.weights.reads import Read

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.weights.history import History


class PipeMare(Asynchronous):
    """w_{t+1} = w_t - alpha_{t,i} * optimizer(grad f_t(w_v, u_bkwd)): forward reads w_v, backward w_t or its estimate.

    T1 (`lr_rescheduling_steps` = K > 0): alpha_{t,i} = alpha_base(t) / max(tau_i, 1)^p, p = 1 - min((t-M)/K, 1), from
    step M on.

    T2 (`decay` = D in (0, 1)): delta_{t+1} = gamma_i delta_t + (1 - gamma_i)(w_{t+1} - w_t), delta_0 = 0,
    gamma_i = D^(1/d_i), d_i = tau_i (tau_bkwd is 0); the backward reads u_bkwd = w_t - d_i delta_t. One more W of
    memory for the stages with d_i > 0. delta is updated in the warm-up too.

    Recomputation in segments of S stages reads w_r, r the stage's version at that moment, with T2 the estimate
    w_r - (tau_i - tau_recomp,i) delta_r; the ceil((2S-1)/N) past ones of these are kept in a ring.

    T3 (`warmup_steps` = M): steps before M are synchronous; then the pipeline refills.
    """

    name = "pipemare"
    title = "PipeMare"
    order = 2
    reference = "Yang et al., PipeMare, MLSys 2021 (arXiv 1910.05124)"
    takes = (*Asynchronous.takes, T2)
    costs = {"pipemare": Costs(buffers=1.0), "pipemare_no_t2": Costs()}

    @classmethod
    def label_of(cls, on: Sequence[str], options: Any) -> str:
        return "+".join(on) or "async"

    @classmethod
    def has_label(cls, label: str) -> bool:
        return label == "async" or set(label.split("+")) <= {"t1", "t2", "t3"}

    @classmethod
    def file_of(cls, label: str) -> str:
        return "pipemare" if label == "t1+t2+t3" else super().file_of(label)

    @classmethod
    def costs_of(cls, label: str) -> Costs | None:
        return cls.costs["pipemare" if "t2" in label.split("+") else "pipemare_no_t2"]

    def prepare(self, weights: Sequence[Tensor]) -> None:
        super().prepare(weights)
        self._backward: tuple[int, list[Read]] = (-1, [])
        self._recompute_ages = [
            [(n - delay) // self.microbatches for delay in self.recompute_delays] for n in range(self.microbatches)
        ]
        if self.decay is None:
            return
        self.gammas = [self.decay ** (1.0 / tau) if tau > 0 else 0.0 for tau in self.tau]
        self.add_buffer("delta", weights, self.tracks())
        # tau_fwd - tau_recomp; 0 in the segment at the loss, whose recomputation reads what its forward read
        self._recompute_gaps = [
            (delay - recomputed) / self.microbatches
            for delay, recomputed in zip(self.delays, self.recompute_delays, strict=True)
        ]
        if self.segment is not None:
            lengths = [
                history_depth(delay, self.microbatches) if gap > 0 else 0
                for delay, gap in zip(self.recompute_delays, self._recompute_gaps, strict=True)
            ]
            self.add_rings("estimate", weights, lengths)

    def recompute(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().recompute(step, microbatch)
        versions = [max(self.warmup_steps, step + age) for age in self._recompute_ages[microbatch]]
        if self.decay is None:
            return [Read(version) for version in versions]
        reads = []
        for version, gap in zip(versions, self._recompute_gaps, strict=True):
            if gap == 0:
                reads.append(Read(version))
            elif version == step:
                reads.append(self._estimate(version, gap))
            else:
                reads.append(Read(version, ring="estimate"))
        return reads

    def _estimate(self, version: int, gap: float) -> Read:
        return Read(version, -gap, "delta")

    def while_current(self, stage: int, read: Read) -> Read:
        return read if read.ring is None else self._estimate(read.version, self._recompute_gaps[stage])

    def about_to_update(self, step: int, history: History) -> None:
        if self.decay is None or step < self.warmup_steps:
            return
        import torch

        for stage, ring in enumerate(self.rings.get("estimate", [])):
            delta = self.buffers["delta"][stage]
            if ring is not None and delta is not None:
                gap = self._recompute_gaps[stage]
                torch.add(history.version(stage, step), delta, alpha=-gap, out=ring.slot(step))

    def backward(self, step: int, microbatch: int) -> list[Read]:
        if self.decay is None or step < self.warmup_steps:
            return super().backward(step, microbatch)
        if self._backward[0] != step:  # the same for all microbatches of a step
            self._backward = step, [Read(step, -tau, "delta") if tau > 0 else Read(step) for tau in self.tau]
        return self._backward[1]

    def tracks(self) -> list[bool]:
        return [self.decay is not None and tau > 0 for tau in self.tau]

    def updated(self, step: int, changes: Iterable[Tensor | None]) -> None:
        if self.decay is None:
            return
        for delta, gamma, change in zip(self.buffers["delta"], self.gammas, changes, strict=True):
            if delta is not None and change is not None:
                delta.lerp_(change, 1.0 - gamma)
