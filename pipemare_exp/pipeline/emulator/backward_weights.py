"""Backward weights that are read where they are kept, beside the live ones, which nothing is copied into for them.

What autograd saves of the weights in a forward is noted as a place in the flat buffer and not as a tensor. When the
backward asks for it, it is given the same place of what its pass reads: a past version where that is kept, or T2's
estimate, made once a step and not once a microbatch. The live weights keep the forward's version for the next
microbatch, where few stages change it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipemare_exp.pipeline.stage_weights import StageWeights
from pipemare_exp.pipeline.weights.reads import Read

WORTHWHILE = 4 << 20
"""Bytes of weights from which on this saves time on a CPU: a call of its hooks costs about 2 microseconds for every
tensor that autograd saves, some 200 to 500 in a microbatch, and 5 times the weights are moved otherwise."""


@dataclass(frozen=True, eq=False, slots=True)
class _Place:
    """A view of the flat weights: its stage, its beginning in the stage's slice, its shape."""

    stage: int
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class BackwardWeights:
    """Gives the backward what `read` names in the place of the weights that forwards within `saving` have saved.

    Right where operations save their weights through autograd (a `torch.autograd.Function` that keeps one as an
    attribute of its context does not), and where every parameter lies in one stage.
    """

    def __init__(self, weights: StageWeights) -> None:
        self._weights, self._buffer = weights, weights.flat.weights
        self._low = self._buffer.data_ptr()
        self._high = self._low + self._buffer.nbytes
        base = int(self._buffer.storage_offset())
        self._starts = [int(stage.storage_offset()) - base for stage in weights.history.live]
        self._places: dict[tuple[Any, ...], _Place] = {}
        self._reads: Sequence[Read] = []
        self._changes = -1
        self._views: dict[_Place, Tensor] = {}

    def saving(self) -> AbstractContextManager[Any]:
        """Within: the forward of a microbatch."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def read(self, reads: Sequence[Read]) -> None:
        """What the coming backward reads, per stage. Looked up when it is asked for (an embedding's backward never
        reads its weights) and kept for the step's other microbatches that read the same."""
        if self._changes != self._weights.changes or reads != self._reads:
            self._reads, self._changes = reads, self._weights.changes
            self._views = {}

    def _pack(self, saved: Tensor) -> Tensor | _Place:
        address = saved.data_ptr()
        if not self._low <= address < self._high:
            return saved
        key = address, saved.dtype, saved.size(), saved.stride()
        place = self._places.get(key)
        if place is None:  # the first microbatch, or operations that saved none of this form before
            place = self._places[key] = self._place(saved)
        return place

    def _place(self, saved: Tensor) -> _Place:
        if saved.dtype != self._buffer.dtype:
            raise RuntimeError(f"weights were saved as {saved.dtype}, they are {self._buffer.dtype}")
        start = (saved.data_ptr() - self._low) // self._buffer.element_size()
        stage = bisect_right(self._starts, start) - 1
        return _Place(stage, int(start) - self._starts[stage], saved.size(), tuple(map(int, saved.stride())))

    def _unpack(self, packed: Tensor | _Place) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        view = self._views.get(packed)
        if view is None:
            source = self._weights.beside(packed.stage, self._reads[packed.stage])
            offset = int(source.storage_offset()) + packed.offset
            view = self._views[packed] = source.as_strided(packed.size, packed.stride, offset)
        return view
