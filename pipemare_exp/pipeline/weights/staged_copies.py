"""Copies of all stages' weights as passes read them, so that live weights change in one copy and not stage by stage.

What a forward reads differs in few stages from what the forward before it read, and all backwards of a step read the
same. An image holds one of the two in one block: it is brought up to date where it differs, and copied as a whole.
Two images cost twice the weights, and save some hundred small operations a microbatch: worth it where operations cost
more than bytes (small models, GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipemare_exp.pipeline.weights.reads import Read

FORWARD, BACKWARD = range(2)

Put = Callable[[Sequence[int], Sequence[Read], Sequence[Tensor]], None]
"""put(stages, reads, places): writes the weights that reads[s] names into places[s], for each s of `stages`."""

FEWEST = 4
"""Changed stages below which they are written one by one."""


class _Image:
    def __init__(self, whole: Tensor, sizes: Sequence[int]) -> None:
        self.whole = torch.zeros_like(whole)
        self.places = self.whole.split(list(sizes))
        self.held: list[Read | None] = [None] * len(sizes)


class Images:
    """An image each of what forwards and backwards read, of `whole`, the flat live weights of all stages, of which
    stage s has `sizes[s]`. Made with the first backward that reads other weights than its forward."""

    def __init__(self, whole: Tensor, sizes: Sequence[int], put: Put) -> None:
        self._whole, self._sizes, self._put = whole, sizes, put
        self._images: list[_Image] = []

    def load(self, which: int, reads: Sequence[Read], changed: int) -> bool:
        """Bring all live weights to `reads`, `changed` of which they are not at. False, with nothing done, where no
        image is needed."""
        if changed < FEWEST or (which == FORWARD and not self._images):
            return False
        if not self._images:
            self._images = [_Image(self._whole, self._sizes) for _ in (FORWARD, BACKWARD)]
        image = self._images[which]
        stages = [stage for stage, held in enumerate(image.held) if held != reads[stage]]
        self._put(stages, reads, image.places)
        image.held = list(reads)
        self._whole.copy_(image.whole)
        return True

    def forget(self) -> None:
        """The weights behind the reads have become others (a checkpoint was loaded)."""
        for image in self._images:
            image.held = [None] * len(self._sizes)

    @property
    def nbytes(self) -> int:
        return sum(image.whole.nbytes for image in self._images)
