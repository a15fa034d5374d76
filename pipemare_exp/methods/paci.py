"""PACI: asynchronous in alternating slots, with one set of weights and nothing to make up for the delay."""

from __future__ import annotations

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Asynchronous
from pipemare_exp.pipeline.schedule.costs import Costs


class Paci(Asynchronous):
    """w_{t+1} = w_t - alpha * optimizer(grad f_t(w_v, w_t)), v = max(M, floor((g - P + i)/N)); marked [code].

    Its workers run backwards first, a forward while fewer than P - i + 1 microbatches are in flight, and an update
    after every a = N backwards: that is PipeMare with nothing switched on (`async`) in alternating slots, under the
    name that its authors gave it. No forward is older than ceil((P-1)/N) steps. Weight memory W; utilization 1.

    Under autocast their backward reads the forward's cast copies of the weights, in effect a stash: here it never does.
    """

    name = "paci"
    title = "PACI"
    order = 13
    reference = "PACI, arXiv 2606.07881"
    study = "methods"
    only_slots = "alternating"
    takes = (T1, T3, RUNTIME)
    cannot = {
        T2: "PACI corrects nothing; with T2 it is method.name=pipemare in alternating slots",
        RECOMPUTATION: "alternating slots hold one operation, and a recomputation would change every delay",
    }
    costs = {"paci": Costs()}
