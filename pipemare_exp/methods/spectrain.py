"""SpecTrain: every pass of a microbatch reads the weights predicted for one moment, its backward at the first stage."""

from __future__ import annotations

from pipemare_exp.pipeline.predicting import Predicting
from pipemare_exp.pipeline.schedule.costs import Costs
from pipemare_exp.pipeline.weights.reads import Read


class SpecTrain(Predicting):
    """Forward w_v - h_i D_v, backward w_t - b_i D_t, D = rate * direction at that version; marked [code].

    A microbatch's backward comes to the first stage i - 1 slots after it was at stage i. In duplex slots that is i - 1
    backwards: b_i = (i-1)/N, h_i = (L_i + i - 1)/N. In alternating slots a backward takes every second slot:
    floor((i-1)/2) instead of i - 1, which with N = 1 are the numbers of their code.

    Exact where the direction is constant and the momentum saturated; with a zero gradient and momentum left it
    overshoots, as the momentum would decay. Weight memory W and D, one W; utilization 1.
    """

    name = "spectrain"
    title = "SpecTrain"
    order = 21
    reference = (
        "Chen et al., Efficient and robust parallel DNN training through model parallelism, 2018 (arXiv 1809.02839)"
    )
    costs = {"spectrain": Costs(buffers=1.0)}

    def horizons(self) -> tuple[list[float], list[float]]:
        left = [s if self.slots == "duplex" else s // 2 for s in range(self.stages)]
        forward = [(late + more) / self.microbatches for late, more in zip(self.delays, left, strict=True)]
        return forward, [more / self.microbatches for more in left]


class SpecTrainStash(Predicting):
    """Version 2: forward and backward both read w_v - h_i D_v, h_i = (L_i + 1)/N; marked [code].

    The forward's prediction is kept for the backward. In alternating slots with N = 1 the horizon is their P - i + 1
    (i from 1); the same to other shapes is ours. It looks one microbatch further than its own backward, so that it is
    not the synchronous method at P = 1.

    Weight memory W, D (one W) and the predictions in flight, as PipeDream's stash; utilization 1.
    """

    name = "spectrain_stash"
    title = "SpecTrain, version 2"
    order = 22
    reference = SpecTrain.reference
    costs = {"spectrain_stash": Costs(stash=1.0, buffers=1.0)}
    keeps_predictions = True

    def horizons(self) -> tuple[list[float], list[float]]:
        return [(late + 1) / self.microbatches for late in self.delays], [0.0] * self.stages

    def backward(self, step: int, microbatch: int) -> list[Read]:
        return self.forward(step, microbatch)

    def depths(self) -> list[int | None]:
        return [1] * self.stages
