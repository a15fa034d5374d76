"""Two copies of all stages' weights, as forwards and as backwards read them, so that the live weights change at once.

Without them the live weights are brought to what a pass reads stage by stage. What a forward reads differs in few
stages from what the forward before it read, and all backwards of a step read the same. So one staged copy follows the
forwards and one the backwards: each is written in the stages where it differs, and is then copied over the live weights
as a whole. The two cost twice the weights, and save some hundred small operations a microbatch: worth it where
operations cost more than bytes (small models, GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipemare_exp.pipeline.weights.reads import Read

FORWARD, BACKWARD = range(2)

Write = Callable[[Sequence[int], Sequence[Read], Sequence[Tensor]], None]
"""write(stages, reads, places): puts the weights that reads[s] names into places[s], for each s of `stages`."""

FEWEST = 4
"""Changed stages below which they are written one by one."""


class _StagedCopy:
    def __init__(self, whole: Tensor, sizes: Sequence[int]) -> None:
        self.whole = torch.zeros_like(whole)
        self.places = self.whole.split(list(sizes))
        self.reads: list[Read | None] = [None] * len(sizes)


class StagedCopies:
    """The staged copies of `whole`, the flat live weights of all stages, of which stage s has `sizes[s]`. They are made
    with the first backward that reads other weights than its forward."""

    def __init__(self, whole: Tensor, sizes: Sequence[int], write: Write) -> None:
        self._whole, self._sizes, self._write = whole, sizes, write
        self._copies: list[_StagedCopy] = []

    def load(self, which: int, reads: Sequence[Read], changed: int) -> bool:
        """Bring all live weights to `reads` through the copy `which` (FORWARD or BACKWARD); in `changed` stages they
        are at something else. False, with nothing done, where that is as well done stage by stage."""
        if changed < FEWEST or (which == FORWARD and not self._copies):
            return False
        if not self._copies:
            self._copies = [_StagedCopy(self._whole, self._sizes) for _ in (FORWARD, BACKWARD)]
        copy = self._copies[which]
        stages = [stage for stage, read in enumerate(copy.reads) if read != reads[stage]]
        self._write(stages, reads, copy.places)
        copy.reads = list(reads)
        self._whole.copy_(copy.whole)
        return True

    def forget(self) -> None:
        """The weights behind the reads have become others (a checkpoint was loaded)."""
        for copy in self._copies:
            copy.reads = [None] * len(self._sizes)

    @property
    def nbytes(self) -> int:
        return sum(copy.whole.nbytes for copy in self._copies)
