"""The weights of a pipeline's stages in training: brought to what a pass reads, updated, saved.

Both engines work on it. The emulator holds every stage in one; the runtime has one for each of its stages, in which all
other stages are empty, so that the methods' rules over all stages hold as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.clipping import Clip
from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.observed import non_finite, norms
from pipemare_exp.pipeline.weights.flat import FlatWeights
from pipemare_exp.pipeline.weights.history import History
from pipemare_exp.pipeline.weights.optimizer_groups import MakeOptimizer
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.pipeline.weights.stage_optimizer import StageOptimizer
from pipemare_exp.pipeline.weights.staged_copies import StagedCopies

T = TypeVar("T")


class StageWeights:
    """The live weights of all stages, the versions that `history` keeps of them, and their optimizer.

    - `method`: bound to these stages;
    - `clip`: see clipping.py;
    - `staged`: passes load their weights through staged copies where many stages change.
    """

    def __init__(
        self,
        flat: FlatWeights,
        method: Method,
        optimizer: MakeOptimizer,
        history: History,
        clip: Clip = None,
        staged: bool = False,
    ) -> None:
        self.flat, self.method, self.history, self.clip = flat, method, history, clip
        self.stages = flat.stages
        self.owned = [stage for stage, weights in enumerate(self.stages) if weights.numel()]
        self.optimizer = StageOptimizer(optimizer, flat, self.owned, history)
        method.prepare_optimizer(self.optimizer)
        self.sums = [torch.zeros_like(flat.gradients)] if method.by_microbatch() else []
        """The gradients of the step's microbatches so far, where the method wants each by itself; else nothing."""
        sizes = [weights.numel() for weights in self.stages]
        self.staged = StagedCopies(flat.weights, sizes, self._write) if staged else None
        self._loaded = [Read(0)] * len(self.stages)
        """What the live weights are."""
        self._estimates: dict[int, Read] = {}
        """What `beside` has made in this step, by stage: it stands in the history's spare memory."""
        self.grad_norms: Tensor | None = None
        """Of the last update that was observed: the norm of each owned stage's gradient, before clipping."""
        self.changes = 0
        """How often the versions that reads name have changed: by an update, by a checkpoint."""

    @torch.no_grad()
    def load(self, reads: Sequence[Read], copy: int | None = None) -> None:
        """Bring the live weights to `reads`, stage by stage where they are something else, or through the staged copy
        `copy` (FORWARD or BACKWARD) where there are such."""
        if self._loaded == reads:
            return
        changed = [stage for stage in self.owned if reads[stage] != self._loaded[stage]]
        if copy is None or self.staged is None or not self.staged.load(copy, reads, len(changed)):
            self._write(changed, reads, self.history.live)
        self._loaded = list(reads)
        self.flat.refresh()

    def _write(self, stages: Sequence[int], reads: Sequence[Read], places: Sequence[Tensor]) -> None:
        """Write the weights that reads[s] names into places[s], for each s of `stages`."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for stage in stages:
            read = reads[stage]
            source = self._source(stage, read)
            if read.buffer is None:
                targets.append(places[stage])
                sources.append(source)
            else:
                delta = existing(self.method.buffers[read.buffer][stage])
                torch.add(source, delta, alpha=read.coef, out=places[stage])
        if targets:
            torch._foreach_copy_(targets, sources)

    def holds(self, reads: Sequence[Read]) -> bool:
        """Whether the live weights are what `reads` names."""
        return self._loaded == reads

    def beside(self, stage: int, read: Read) -> Tensor:
        """The weights that `read` names, for reading only, in memory beside the live ones: the history's, where they
        stay until `changes` counts on.

        An estimate is made once and kept until the update, in the place of the oldest version: a forward of this step
        that reads that version must have loaded it before.
        """
        if read.buffer is None:
            return self._source(stage, read)
        place = self.history.spare(stage)
        if self._estimates.get(stage) != read:
            buffer = existing(self.method.buffers[read.buffer][stage])
            torch.add(self._source(stage, read), buffer, alpha=read.coef, out=place)
            self._estimates[stage] = read
        return place

    def _source(self, stage: int, read: Read) -> Tensor:
        if read.ring is None:
            return self.history.version(stage, read.version)
        return existing(self.method.rings[read.ring][stage]).slot(read.version)

    def load_current(self) -> None:
        """Bring the live weights to version t."""
        self.load([Read(self.history.current)] * len(self.stages))

    @property
    def rates(self) -> list[float]:
        """The stages' rates of the last update."""
        return self.optimizer.rates

    @torch.no_grad()
    def collect(self, step: int, microbatch: int) -> None:
        """The backward of microbatch n = `microbatch` of `step` is done: nothing to do where backwards add up their
        gradients themselves; otherwise the method sees them, and they are added to the others."""
        for total in self.sums:
            self.method.transform_microbatch(step, microbatch, self.flat.stage_gradients, self.history)
            total.add_(self.flat.gradients)
            self.flat.gradients.zero_()

    def copy_of(self, stage: int, read: Read) -> Tensor:
        """The weights that `read` names, in memory of their own. No pass of its step may have been run yet."""
        if read.buffer is None:
            return self._source(stage, read).clone()
        return torch.add(self._source(stage, read), existing(self.method.buffers[read.buffer][stage]), alpha=read.coef)

    @torch.no_grad()
    def update(self, step: int, rate: float, observed: bool = False) -> None:
        """The update of `step` from the summed gradients, at base rate `rate`: version t + 1 becomes the current.

        `observed`: note the gradients' norms, here because clipping, methods and optimizers write over gradients.
        """
        self.load_current()
        for total in self.sums:
            self.flat.gradients.copy_(total)
            total.zero_()
        owned = [self.stages[stage] for stage in self.owned]
        if observed:
            self.grad_norms = norms([self.flat.stage_gradients[stage] for stage in self.owned])
        if self.clip is not None:
            for stages in [owned] if self.clip[0] == "global" else [[stage] for stage in owned]:
                nn.utils.clip_grad_norm_(stages, self.clip[1])
        self.method.transform_gradients(step, self.flat.stage_gradients)
        self.optimizer.set_rates([rate * factor for factor in self.method.rate_factors(step)])
        self.method.about_to_update(step, self.history)
        self.method.update(step, self.optimizer)
        self.method.updated(step, self._changes())
        self.history.push()
        self._estimates.clear()
        self.changes += 1
        self._loaded = [Read(self.history.current)] * len(self.stages)
        self.flat.refresh()

    def _changes(self) -> Iterator[Tensor | None]:
        """w_{t+1} - w_t of one stage after the other; None where the method does not track it.

        A difference is taken when the method asks for it, into memory that will hold version t + 1. When the method
        asks for the next stage's it has read this one, so version t + 1 may take its place, while the stage is in the
        cache.
        """
        for stage, wanted in enumerate(self.method.tracks()):
            if wanted and self.stages[stage].numel():
                yield self.history.change(stage)
                self.history.store(stage)
            else:
                yield None

    def non_finite(self) -> dict[str, int]:
        """How many numbers of the `optimizer`'s state and of the `method`'s buffers are not finite."""
        states = (value for state in self.optimizer.torch.state.values() for value in state.values())
        buffers = (tensor for stages in self.method.buffers.values() for tensor in stages if tensor is not None)
        return {
            "optimizer": non_finite(value for value in states if isinstance(value, Tensor)),
            "method": non_finite(buffers),
        }

    def memory(self) -> dict[str, int]:
        """Bytes beside the live weights: `history` (on the device) and `host` (of the history, in host memory), the
        method's `buffers` and `rings`, `staged` copies."""
        buffers = [t for stages in self.method.buffers.values() for t in stages if t is not None]
        rings = [ring for stages in self.method.rings.values() for ring in stages if ring is not None]
        return {
            "history": self.history.nbytes(),
            "host": self.history.host_nbytes(),
            "buffers": sum(t.nbytes for t in buffers),
            "rings": sum(ring.data.nbytes for ring in rings),
            "staged": 0 if self.staged is None else self.staged.nbytes,
        }

    def state_dict(self) -> dict:
        """All that the next updates need, at version t."""
        self.load_current()
        return {
            "history": self.history.state_dict(),
            "optimizer": self.optimizer.torch.state_dict(),
            "method": self.method.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        self.history.load_state_dict(state["history"])
        self.optimizer.torch.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        self._estimates.clear()
        self.changes += 1
        if self.staged is not None:
            self.staged.forget()
        self._loaded = [Read(self.history.current)] * len(self.stages)
        self.flat.refresh()


def existing(value: T | None) -> T:
    """`value`, which is there for every stage that asks for it."""
    assert value is not None
    return value
