"""The weights of a pipeline's stages in training: brought to what a pass reads, updated, saved.

Both engines work on it. The emulator holds every stage in one; the runtime holds one stage in each, and stands in an
empty tensor for each of the others, so that the methods' rules over all stages hold as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipemare_exp.pipeline.method import Method
from pipemare_exp.pipeline.weights.history import History
from pipemare_exp.pipeline.weights.host_history import HostHistory
from pipemare_exp.pipeline.weights.reads import Read
from pipemare_exp.pipeline.weights.staged_copies import Images

Clip = tuple[str, float] | None
T = TypeVar("T")
MakeOptimizer = Callable[[list[dict]], torch.optim.Optimizer]


class StageWeights:
    """The flat weights `stages` (one Parameter per stage, with its `.grad`), the history that `depths` asks for, and
    the optimizer. `method` is bound to these stages. `clip`: None, or ("stage" | "global", largest norm). `on_host`:
    old versions lie in host memory. `whole`: the buffer that all stages lie in one after another, where images of it
    shall be used."""

    def __init__(
        self,
        stages: Sequence[nn.Parameter],
        method: Method,
        optimizer: MakeOptimizer,
        clip: Clip,
        depths: Sequence[int | None],
        on_host: bool = False,
        whole: Tensor | None = None,
    ) -> None:
        self.stages, self.method, self.clip = list(stages), method, clip
        self.gradients = [held(stage.grad) for stage in stages]
        self.owned = [stage for stage, flat in enumerate(stages) if flat.numel()]
        self.history = HostHistory(self.stages, depths) if on_host else History(self.stages, depths)
        self.optimizer = optimizer([{"params": [self.stages[stage]], "lr": 0.0} for stage in self.owned])
        self.rates = [0.0] * len(self.stages)
        self.images = None
        if whole is not None:
            self.images = Images(whole, [live.numel() for live in self.history.live], self._write)
        self._loaded = [Read(0)] * len(self.stages)
        self.refresh: Callable[[], None] | None = None
        """Called whenever the live weights have changed: the model may compute with something made from them."""
        self._estimates: dict[int, Read] = {}
        """What `beside` has made in this step, by stage: it stands in the history's spare slot."""
        self.changes = 0
        """How often the versions that reads name have changed: by an update, by a checkpoint."""

    @torch.no_grad()
    def load(self, reads: Sequence[Read], image: int | None = None) -> None:
        """Bring the live weights to `reads`, copying only the stages that hold something else, or through an image
        (`images.FORWARD` or `BACKWARD`) where there are images."""
        if self._loaded == reads:
            return
        changed = [stage for stage in self.owned if reads[stage] != self._loaded[stage]]
        if image is None or self.images is None or not self.images.load(image, reads, len(changed)):
            self._write(changed, reads, self.history.live)
        self._loaded = list(reads)
        if self.refresh is not None:
            self.refresh()

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
                delta = held(self.method.buffers[read.buffer][stage])
                torch.add(source, delta, alpha=read.coef, out=places[stage])
        if targets:
            torch._foreach_copy_(targets, sources)

    def holds(self, reads: Sequence[Read]) -> bool:
        """Whether the live weights are what `reads` names."""
        return self._loaded == reads

    def beside(self, stage: int, read: Read) -> Tensor:
        """The weights that `read` names, for reading only, where they stand until `changes` counts on: in the history,
        without touching the live ones.

        An estimate is made once and kept until the update, in place of the oldest version: a forward of this step that
        reads that version must have loaded it before.
        """
        if read.buffer is None:
            return self._source(stage, read)
        place = self.history.spare(stage)
        if self._estimates.get(stage) != read:
            buffer = held(self.method.buffers[read.buffer][stage])
            torch.add(self._source(stage, read), buffer, alpha=read.coef, out=place)
            self._estimates[stage] = read
        return place

    def _source(self, stage: int, read: Read) -> Tensor:
        if read.ring is None:
            return self.history.version(stage, read.version)
        return held(self.method.rings[read.ring][stage]).slot(read.version)

    def prefetch(self, reads: Sequence[Read]) -> None:
        """Say what the next forward reads, so that what lies in host memory is on its way."""
        if isinstance(self.history, HostHistory):
            self.history.prefetch(reads)

    def load_current(self) -> None:
        """Bring the live weights to version t."""
        self.load([Read(self.history.current)] * len(self.stages))

    def update(self, step: int, rate: float) -> None:
        """The update of `step` from the summed gradients, at base rate `rate`: version t + 1 becomes the current."""
        self.load_current()
        owned = [self.stages[stage] for stage in self.owned]
        if self.clip is not None:
            for stages in [owned] if self.clip[0] == "global" else [[stage] for stage in owned]:
                nn.utils.clip_grad_norm_(stages, self.clip[1])
        self.method.transform_gradients(step, self.gradients)
        self.rates = [rate * factor for factor in self.method.rate_factors(step)]
        for parameters, stage in zip(self.optimizer.param_groups, self.owned, strict=True):
            parameters["lr"] = self.rates[stage]
        self.method.about_to_update(step, self.history)
        self.optimizer.step()
        self.method.updated(step, self._changes())
        self.history.push()
        self._estimates.clear()
        self.changes += 1
        self._loaded = [Read(self.history.current)] * len(self.stages)
        if self.refresh is not None:
            self.refresh()

    def _changes(self) -> Iterator[Tensor | None]:
        """Stage by stage what an update changed, None for one that the method does not track. A change is made when
        it is asked for and replaced by the next version when the one after it is: the stage is in the cache by then."""
        for stage, wanted in enumerate(self.method.tracks()):
            if wanted and self.stages[stage].numel():
                yield self.history.change(stage)
                self.history.push_early(stage)
            else:
                yield None

    def memory(self) -> dict[str, int]:
        """Bytes held beside the live weights: `history`, the method's `buffers` and `rings`, `images`, and `host`, what
        of the history lies in host memory."""
        buffers = [t for stages in self.method.buffers.values() for t in stages if t is not None]
        rings = [ring for stages in self.method.rings.values() for ring in stages if ring is not None]
        host = {"host": self.history.host_nbytes()} if isinstance(self.history, HostHistory) else {}
        return {
            **host,
            "history": self.history.nbytes(),
            "buffers": sum(t.nbytes for t in buffers),
            "rings": sum(ring.data.nbytes for ring in rings),
            "images": 0 if self.images is None else self.images.nbytes,
        }

    def state_dict(self) -> dict:
        """All that the next updates need, at version t."""
        self.load_current()
        return {
            "history": self.history.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        self.history.load_state_dict(state["history"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        self._estimates.clear()
        self.changes += 1
        if self.images is not None:
            self.images.forget()
        self._loaded = [Read(self.history.current)] * len(self.stages)
        if self.refresh is not None:
            self.refresh()


def held(value: T | None) -> T:
    """`value`, which is there for every stage that asks for it."""
    assert value is not None
    return value
