"""PipeDream: asynchronous pipeline with weight stashing."""

from __future__ import annotations

from pipemare_exp.pipeline.method import T2, Asynchronous
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.weights.reads import Read


class PipeDream(Asynchronous):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_v, w_v)): a backward reads the version its forward read.

    Weight memory W plus the stash of versions in flight, W*P/N on average. Forward and backward agree, so there is no
    discrepancy and T2 is refused. T1 and T3 act as in PipeMare; the baseline as published has neither.
    """

    name = "pipedream"
    title = "PipeDream"
    order = 1
    reference = "Narayanan et al., PipeDream, SOSP 2019"
    cannot = {
        T2: "the backward reads the very version that the forward read, so d = tau_fwd - tau_bkwd = 0 and there is "
        "nothing to correct"
    }
    costs = {"pipedream": Costs(stash=1.0)}

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)
