"""PipeDream-2BW: every stage is late by one step, with two versions of its weights."""

from __future__ import annotations

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Asynchronous
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.schedule.versions import history_depth, slot_delays
from pipemare_exp.pipeline.weights.reads import Read


class TwoBW(Asynchronous):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_u, w_u)), u = max(M, t - 1), at all stages; marked [code].

    Two buffers of the weights, 2 W, are enough where no microbatch is in flight over more than one update: where
    L_1 <= N, which is N >= 2P - 1 in duplex slots and N >= P - 1 in alternating ones. Another shape is refused. All
    delays are one step, also those of stages whose forward could read something newer.
    """

    name = "two_bw"
    title = "PipeDream-2BW"
    order = 12
    reference = "Narayanan et al., Memory-efficient pipeline-parallel DNN training, ICML 2021 (arXiv 2006.09503)"
    study = "methods"
    takes = (T3, RECOMPUTATION, RUNTIME)
    cannot = {
        T1: "every delay is one step, and a rate divided by 1^p is the rate: there is nothing to reschedule",
        T2: "both passes read version t - 1, so d = 0 and there is no discrepancy to correct",
    }
    costs = {"two_bw": Costs(versions=2.0)}

    @classmethod
    def shape_refusal(cls, stages: int, microbatches: int, slots: str) -> str | None:
        late = slot_delays(stages, slots)[0]
        if late <= microbatches:
            return None
        formula, fitting = ("2P-1", (microbatches + 1) // 2) if slots == "duplex" else ("P-1", microbatches + 1)
        return (
            f"in {slots} slots {formula} = {late} backwards lie between forward and backward of the first of P = "
            f"{stages} stages, and N = {microbatches} microbatches make an update, so a forward would be "
            f"{history_depth(late, microbatches)} versions old where two buffers hold one past version; take "
            f"pipeline.microbatches={late} or more, or pipeline.stages={fitting} or fewer"
        )

    def forward(self, step: int, microbatch: int) -> list[Read]:
        version = step if step < self.warmup_steps else max(self.warmup_steps, step - 1)
        return [Read(version)] * self.stages

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)

    def depths(self) -> list[int | None]:
        return [1] * self.stages
