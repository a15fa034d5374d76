"""AMDP: the first microbatches of a minibatch read the weights of the step before, the others the current ones."""

from __future__ import annotations

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Method
from pipemare_exp.pipeline.weights.reads import Read


class AMDP(Method):
    """Forward w_{max(M, t-1)} for microbatches n < k_i, w_t for the others; backward w_t; marked [code].

    k_i = P/2 (rounded down, ours) at all stages but the last, where it is 0: derived from their schedule [ours]. k = 0
    is synchronous; k = N is "forward t - 1, backward t". Needs P/2 <= N.

    Emulator only: its schedule runs microbatches through the stages in both directions, which no schedule here does,
    and so `pipemare plan` has no costs of it. One version of the weights is live at a time.
    """

    name = "amdp"
    title = "AMDP"
    order = 41
    reference = "AMDP, ICML 2026 (arXiv 2605.29664)"
    synchronous = False
    study = "methods"
    takes = (T3,)
    cannot = {
        T1: "its mean delays are k/N, at most one step, and T1's factor max(k/N, 1)^-p is 1",
        T2: "some microbatches of a step are one step late and some are not: T2's one estimate for all backwards of a "
        "step would be wrong for either",
        RECOMPUTATION: "its schedule has no slots to recompute in",
        RUNTIME: "its schedule runs microbatches in both directions, and the runtime's runs them in one",
    }

    @classmethod
    def shape_refusal(cls, stages: int, microbatches: int, slots: str) -> str | None:
        if stages // 2 <= microbatches:
            return None
        return (
            f"the first P/2 = {stages // 2} microbatches of a minibatch read the weights of the step before, and there "
            f"are N = {microbatches}; take pipeline.microbatches={stages // 2} or more, or "
            f"pipeline.stages={2 * microbatches + 1} or fewer"
        )

    def forward(self, step: int, microbatch: int) -> list[Read]:
        early = microbatch < self.stages // 2 and step > self.warmup_steps
        first = Read(step - 1 if early else step)
        return [first] * (self.stages - 1) + [Read(step)]

    def depths(self) -> list[int | None]:
        return [1 if self.stages > 1 else None] * (self.stages - 1) + [None]
