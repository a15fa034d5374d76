"""Methods that predict: a pass reads where the weights are going to be, not where they are.

    u = w_v - h_s * D_v        D_v = rate * direction, both of the update that made version v

The direction must be that of version v, which the forward reads, and not the newest one that there is when the emulator
comes to the forward. So D is a buffer that every update makes anew, and the predictions of past versions are kept in a
ring, as versions are: they are made when their version is about to be replaced, while D is still that version's.

    update v-1           step v                          update v
    D <- D_v       current version: w_v - h D       ring[v] <- w_v - h D_v;  D <- D_{v+1}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipemare_exp.pipeline.method import RECOMPUTATION, RUNTIME, T1, T2, T3, Asynchronous
from pipemare_exp.pipeline.schedule.versions import history_depth
from pipemare_exp.pipeline.weights.reads import Read

if TYPE_CHECKING:
    from torch import Tensor

    from pipemare_exp.pipeline.weights.history import History
    from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer

BUFFER, RING = "displacement", "predicted"


class Predicting(Asynchronous):
    """An asynchronous method whose passes read predicted weights: `horizons` says how far ahead.

    The rate in D is the stage's of the update that made the version, T1's factor included. Version 0, and stages with
    horizon 0, are read as they are. In the warm-up (T3) nothing is predicted, and D is made all the same. D is zero
    before the first update.

    Needs an optimizer with a direction: SGD, Adam or AdamW. Weight memory W and D, one W at the stages that predict.
    """

    takes = (T1, T3, RUNTIME)
    cannot = {
        T2: "the forward reads an estimate of what the weights will be at the backward, and to take the backward back "
        "to the forward's version would undo it",
        RECOMPUTATION: "the recomputation would need a prediction over its own, shorter delay, which the method does "
        "not define",
    }
    study = "methods"
    keeps_predictions = False
    """Whether backwards read the predictions of past versions, in a real pipeline too."""

    def horizons(self) -> tuple[list[float], list[float]]:
        """How far ahead forward and backward look at each stage, in multiples of D."""
        raise NotImplementedError

    def prepare(self, weights: Sequence[Tensor]) -> None:
        super().prepare(weights)
        self.ahead, self.ahead_backward = self.horizons()
        self._predicts = [max(pair) > 0 for pair in zip(self.ahead, self.ahead_backward, strict=True)]
        self.add_buffer(BUFFER, weights, self._predicts)
        lengths = [history_depth(delay, self.microbatches) for delay in self.delays]
        kept = [length if ahead > 0 else 0 for length, ahead in zip(lengths, self.ahead, strict=True)]
        self.add_rings(RING, weights, kept, always=self.keeps_predictions)

    def forward(self, step: int, microbatch: int) -> list[Read]:
        reads = super().forward(step, microbatch)
        if step < self.warmup_steps:
            return reads
        return [self._predicted(read.version, ahead, step) for read, ahead in zip(reads, self.ahead, strict=True)]

    def backward(self, step: int, microbatch: int) -> list[Read]:
        if step < self.warmup_steps:
            return super().backward(step, microbatch)
        return [self._predicted(step, ahead, step) for ahead in self.ahead_backward]

    def _predicted(self, version: int, ahead: float, step: int) -> Read:
        if ahead == 0:
            return Read(version)
        return Read(version, -ahead, BUFFER) if version == step else Read(version, ring=RING)

    def while_current(self, stage: int, read: Read) -> Read:
        return read if read.ring is None else Read(read.version, -self.ahead[stage], BUFFER)

    def depths(self) -> list[int | None]:
        """Past versions of stages whose forward reads them; of the others the current one, and one place more where a
        backward's estimate may be made beside it."""
        depths = super().depths()
        for stage, (ahead, back) in enumerate(zip(self.ahead, self.ahead_backward, strict=True)):
            if ahead > 0:
                depths[stage] = 1 if back > 0 else 0
            elif back > 0:
                depths[stage] = max(depths[stage] or 0, 1)
        return depths

    def prepare_optimizer(self, optimizer: StageOptimizer) -> None:
        from pipemare_exp.pipeline.weights.stage_optimizer import check_direction

        check_direction(optimizer.name, f"method.name={self.name}")

    def about_to_update(self, step: int, history: History) -> None:
        import torch

        for stage, ring in enumerate(self.rings.get(RING, [])):
            displacement = self.buffers[BUFFER][stage]
            if ring is not None and displacement is not None and displacement.numel():
                torch.add(history.version(stage, step), displacement, alpha=-self.ahead[stage], out=ring.slot(step))

    def update(self, step: int, optimizer: StageOptimizer) -> None:
        super().update(step, optimizer)
        for stage, displacement in enumerate(self.buffers[BUFFER]):
            if displacement is not None and displacement.numel():
                self.displace(stage, optimizer, displacement)

    def displace(self, stage: int, optimizer: StageOptimizer, out: Tensor) -> None:
        """Write D of the version that the update just made has given `stage` into `out`."""
        optimizer.direction(stage, out)
        out.mul_(optimizer.rates[stage])
