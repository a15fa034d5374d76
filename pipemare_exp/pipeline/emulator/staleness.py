"""How stale are the weights of one step, and how near does the backward come to what its forward read?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from pipemare_exp.pipeline.observed import Staleness, norms
from pipemare_exp.pipeline.stage_weights import StageWeights
from pipemare_exp.pipeline.weights.reads import Read


class Diagnosis:
    """Looks at `weights` before the passes of step t = `history.current` and after its update.

    `forwards[n]` is what the forward of microbatch n reads. Every version that the step reads is there before its
    first pass; later an estimate may stand in the place of the oldest one. Holds a copy of w_t until the update.
    """

    @torch.no_grad()
    def __init__(self, weights: StageWeights, forwards: Sequence[Sequence[Read]]) -> None:
        self.weights = weights
        step, owned = weights.history.current, weights.owned
        backwards = [weights.method.backward(step, n) for n in range(len(forwards))]
        self.before = [weights.copy_of(stage, Read(step)) for stage in owned]
        self.norms = norms(self.before).tolist()
        passes = [
            Counter((one[stage], other[stage]) for one, other in zip(forwards, backwards, strict=True))
            for stage in owned
        ]
        self.behind = [
            self._distances(stage, now, counts) for stage, now, counts in zip(owned, self.before, passes, strict=True)
        ]
        self.count = len(forwards)

    def _distances(self, stage: int, now: Tensor, passes: Counter[tuple[Read, Read]]) -> Tensor:
        """Summed over the microbatches of a stage: [||w_t - w_fwd||, ||u_bkwd - w_fwd||]."""
        total = torch.zeros(2, dtype=torch.float64, device=now.device)
        for (forward, backward), count in passes.items():
            read = self.weights.copy_of(stage, forward)
            total += count * norms([now - read, self.weights.copy_of(stage, backward) - read])
        return total

    @torch.no_grad()
    def after_update(self) -> Staleness:
        """The four numbers of every stage that has weights, once version t + 1 is current. Waits for the device."""
        weights = self.weights
        assert weights.grad_norms is not None, "a diagnosed step is observed"
        live = [weights.history.live[stage] for stage in weights.owned]
        moved = norms([new - old for new, old in zip(live, self.before, strict=True)]).tolist()
        sums = torch.stack(self.behind).tolist()
        return Staleness(
            staleness=[_over(late / self.count, norm) for (late, _), norm in zip(sums, self.norms, strict=True)],
            t2_error=[_over(error, late) for late, error in sums],
            update=[_over(change, norm) for change, norm in zip(moved, self.norms, strict=True)],
            grad_norm=weights.grad_norms.tolist(),
        )


def _over(value: float, by: float) -> float | None:
    return value / by if by else None
