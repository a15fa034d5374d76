"""GPipe: synchronous pipeline-parallel training, flushed after every minibatch."""

from __future__ import annotations

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Method
from pipemare_exp.pipeline.schedule.costs import Costs


class GPipe(Method):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_t, w_t)): forward and backward both read version t.

    Weight memory W; utilization N/(N+P-1). Equal to plain training with N accumulated microbatches. Has no delay, so
    T1, T2 and T3 have nothing to act on.
    """

    name = "gpipe"
    title = "GPipe"
    order = 0
    reference = "Huang et al., GPipe, NeurIPS 2019"
    only_slots = "alternating"
    takes = (RECOMPUTATION, RUNTIME)
    cannot = {
        T1: "GPipe is synchronous, every delay tau is 0, so there is no rate to reschedule",
        T2: "GPipe is synchronous, every delay tau is 0, so there is no discrepancy to correct",
        T3: "GPipe is synchronous throughout, so there is nothing to warm up to",
    }
    costs = {"gpipe": Costs(flushed=True)}
