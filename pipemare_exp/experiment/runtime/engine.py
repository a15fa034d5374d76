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
from pipemare_exp.pipeline.observed import Observed, finite_buffers, non_finite, total_norm
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
        self._statistics = finite_buffers(prepared.model)
        self._health: tuple[int, list[list[float]]] = (-1, [])
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

    def step(
        self, microbatches: Any, loss: Any, rate: float, *, observed: bool = False, diagnosed: bool = False
    ) -> Tensor:
        """Work until the next update of stage 0, the last one of that step; returns the step's loss.

        The arguments are not used: every rank reads its microbatches, the loss and the rates by itself, and knows
        which steps are observed.
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

    def _told(self) -> list[list[float]]:
        """What every stage has measured of the step just made (see `Stage.health`), by messages that come once."""
        if self._health[0] != self.version:
            with self._named():
                self._health = self.version, self.running.health(self.version)
        return self._health[1]

    def observed(self) -> Observed:
        """The norm over all stages, from every rank's share, and the longest of their delays."""
        told = self._told()
        return Observed(total_norm(norm for norm, *_ in told), int(max(delay for _, delay, *_ in told)))

    def non_finite(self) -> dict[str, int | None]:
        """Of weights and buffers, what the replica has; of the rest, what the stages have counted. Before `start` no
        stage is there to count."""
        told: list[list[float]] | None = None
        if self.runtime is not None:
            with self._named():
                self._fill()
            told = self._told()
        buffers = dict(self.replica.named_buffers())
        return {
            "weights": non_finite(self.replica.parameters()),
            "buffers": non_finite(buffers[name] for name in self._statistics if name in buffers),
            "optimizer": None if told is None else int(sum(count for *_, count, _ in told)),
            "method": None if told is None else int(sum(count for *_, count in told)),
        }

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
