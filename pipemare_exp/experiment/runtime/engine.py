"""The pipeline as a training loop sees it: on rank 0, in the place of the emulator.

The loop asks for a step, and gets the loss; for the model of version t, and gets a copy filled with what every stage
sent when it was there; for a checkpoint, which every rank has written its part of. Nothing of that waits for the
pipeline to drain, and nothing touches what is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipemare_exp.experiment.runtime import rank_files
from pipemare_exp.experiment.runtime.build import build
from pipemare_exp.experiment.runtime.decisions import tell
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.runtime.inbox import RankFailure, Stopped
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.stage import buffers_of


class RuntimeEngine:
    """The `Engine` on rank 0 that stands for the whole pipeline of `ranks` ranks.

    Before `start`, `evaluation()` gives the model of a checkpoint that was loaded, which needs no other rank.
    """

    def __init__(self, prepared: Prepared, ranks: int = 1) -> None:
        self.prepared, self.ranks = prepared, ranks
        self.replica: nn.Module = prepared.model
        self.runtime: Runtime | None = None
        self.version = 0
        self._filled = 0
        self._resume: int | None = None
        self._pipeline = prepared.pipeline

    def start(self, folder: Path, checkpoint: Callable[[int], tuple[bool, bool]]) -> None:
        """Tell the other ranks to begin (each waits in `told`), and build this one's part."""
        tell({"go": True, "folder": str(folder), "version": self._resume})
        self.replica = copy.deepcopy(self.prepared.model)
        self._parts = cut(self.replica, self._pipeline.units, self._pipeline.boundaries)
        self.runtime = build(self.prepared, self.ranks, folder, checkpoint)
        if self._resume is not None:
            rank_files.restore(self.runtime, folder, self._resume)

    @property
    def running(self) -> Runtime:
        assert self.runtime is not None, "start() comes first"
        return self.runtime

    def step(self, microbatches: Any, loss: Any, rate: float) -> Tensor:
        """Work until the next update of stage 0, the last one of that step; returns the step's loss.

        The arguments are not used: every rank reads its microbatches, the loss and the rates by itself.
        """
        runtime = self.running
        with self._named():
            runtime.advance()
            self.version += 1
            return runtime.loss(self.version)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of this rank, and what it heard of others, as RankFailure."""
        runtime = self.running
        try:
            yield
        except (RankFailure, Stopped):
            raise
        except Exception as error:
            raise RankFailure(runtime.failure(error)) from error

    @torch.no_grad()
    def _fill(self) -> None:
        """Bring the replica to version t."""
        if self.runtime is None or self._filled == self.version:
            return
        named = dict(self.replica.named_parameters())
        for stage, names in enumerate(self._pipeline.stage_parameters):
            flat, *buffers = self.runtime.snapshot(self.version, stage)
            offset = 0
            for name in names:
                parameter = named[name]
                part = flat[offset : offset + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                offset += parameter.numel()
            for mine, sent in zip(buffers_of(self._parts[stage]), buffers, strict=True):
                mine.copy_(sent)
        self._filled = self.version

    def finite(self) -> bool:
        """Whether all weights of version t are finite."""
        with self._named():
            self._fill()
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.replica.parameters())

    @contextmanager
    def evaluation(self) -> Iterator[nn.Module]:
        """A model in eval mode with every stage's weights at version t and statistics of the microbatches before."""
        if self.runtime is not None:
            with self._named():
                self._fill()
            self.runtime.transport.where = f"the evaluation after step {self.version}"
        began = self.runtime.timeline.mark() if self.runtime is not None else None
        self.replica.eval()
        with torch.no_grad():
            yield self.replica
        self.replica.train()
        if self.runtime is not None:
            self.runtime.timeline.add(f"E{self.version}", 0, self.version, began, self.runtime.timeline.mark())

    @property
    def parts(self) -> list[str]:
        """The ranks' files of the checkpoint at version t, from the folder of checkpoints."""
        return [rank_files.name(self.version, rank) for rank in range(self.ranks)]

    def state_dict(self) -> dict[str, Any]:
        """What last.pt holds of the engine, once every rank has written its part of the checkpoint at version t."""
        with self._named():
            self._fill()
            self.running.wait_for_saves(self.version)
        return {"version": self.version, "ranks": self.ranks, "model": self.replica.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = self._filled = self._resume = state["version"]
        self.replica.load_state_dict(state["model"])
