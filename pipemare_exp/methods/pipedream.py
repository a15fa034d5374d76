"""PipeDream: asynchronous pipeline with weight stashing."""

from __future__ import annotations

from pipemare_exp.pipeline.method import Asynchronous
from pipemare_exp.pipeline.weights.reads import Read


class PipeDream(Asynchronous):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_v, w_v)): a backward reads the version its forward read.

    Weight memory W plus the stash of versions in flight, W*P/N on average. Forward and backward agree, so there is no
    discrepancy and T2 is refused. T1 and T3 act as in PipeMare (the configuration has T3 only).

    Reference: Narayanan et al., "PipeDream", SOSP 2019.
    """

    label = "pipedream"
    cannot = {
        "decay": "T2 corrects the discrepancy between forward and backward, and with weight stashing there is none"
    }

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)
