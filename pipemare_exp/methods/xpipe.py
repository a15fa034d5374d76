"""XPipe: SpecTrain's horizons, and one prediction for all microbatches of a minibatch."""

from __future__ import annotations

from pipemare_exp.methods.spectrain import SpecTrain
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.weights.reads import Read


class XPipe(SpecTrain):
    """Forward w_u - h_i D_u, backward w_t - b_i D_t, u the version that the minibatch's first microbatch reads; [code].

    h_i and b_i are SpecTrain's. The first microbatch of a minibatch fixes the forward's prediction; the others read it
    again, also where the stage has made an update since. The paper predicts along Adam's direction; SGD's momentum is
    taken as well.

    Weight memory W, D (one W) and the minibatch's prediction, one W; utilization 1.
    """

    name = "xpipe"
    title = "XPipe"
    order = 23
    reference = "Guan et al., XPipe, 2019 (arXiv 1911.04610); code in fairscale, pull request 553"
    costs = {"xpipe": Costs(buffers=2.0)}
    keeps_predictions = True

    def forward(self, step: int, microbatch: int) -> list[Read]:
        return super().forward(step, 0)
