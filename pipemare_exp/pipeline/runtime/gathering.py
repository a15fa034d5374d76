"""What a checkpoint at a later version needs, collected while it passes by.

The pipeline is not drained for a checkpoint at version t. Some microbatches have then been run forward and not yet
backward, with weights that are overwritten since; and some outputs are on their way to the next stage. Both are copied
when they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipemare_exp.pipeline.runtime.boundary import Sent
from pipemare_exp.pipeline.weights.reads import Read


@dataclass
class Saving:
    """What is gathered for a checkpoint at version `version`: copies of the `weights` with which the microbatches that
    will be in flight were run, and the outputs that will be `under_way` to the next stage."""

    version: int
    weights: dict[Read, Tensor] = field(default_factory=dict)
    under_way: list[dict[str, Any]] = field(default_factory=list)


class Gathering:
    """The checkpoints that a stage gathers for, by version; `stage` is its index."""

    def __init__(self, stage: int, stages: int, microbatches: int) -> None:
        self.next = stage + 1 if stage < stages - 1 else None
        self.microbatches = microbatches
        self._savings: dict[int, Saving] = {}

    def begin(self, version: int) -> None:
        """Gather from now on what a checkpoint at `version` needs. No later microbatch may have been forwarded yet."""
        self._savings.setdefault(version, Saving(version))

    def __contains__(self, version: int) -> bool:
        return version in self._savings

    def pop(self, version: int) -> Saving:
        return self._savings.pop(version)

    def _for(self, g: int) -> list[Saving]:
        """The checkpoints at whose version microbatch `g` will be in flight."""
        return [saving for saving in self._savings.values() if g >= saving.version * self.microbatches]

    def copy_weights(self, g: int, read: Read, live: Tensor) -> None:
        """Keep the `live` weights, which are what `read` names, with which microbatch `g` is run."""
        for saving in self._for(g):
            if read not in saving.weights:
                saving.weights[read] = live.clone()

    def note_under_way(self, kind: str, g: int, versions: Sequence[int], sent: Sent) -> None:
        """Keep an output that the next stage will not have used when it reaches the checkpoint's version. `versions`:
        the current version of every stage at this pass of `g`, which need not be the one that the pass reads."""
        if self.next is None:
            return
        for saving in self._for(g):
            if versions[self.next] >= saving.version:
                tensors = None if sent[0] is None else [tensor.detach().clone() for tensor in sent[0]]
                saving.under_way.append({"kind": kind, "index": g, "tensors": tensors, "grads": list(sent[1])})
