"""The pipeline as the training loop sees it: on rank 0, in the place of the emulator.

The loop asks for a step, and gets the loss; for the model of version t, and gets a copy filled with what every stage
sent when it was there; for a checkpoint, which every rank has written its part of. Nothing of that waits for the
pipeline to drain, and nothing touches what is trained.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.runs.checkpoint import read, write
from pipemare_exp.experiment.runs.reading import Damaged
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.loop import Loop, evaluation_due
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.model.units import group
from pipemare_exp.pipeline.runtime.feed import Feed, Wishes
from pipemare_exp.pipeline.runtime.inbox import RankFailure, Stopped
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.routes import columns_of, ranks_of
from pipemare_exp.pipeline.runtime.stage import buffers_of
from pipemare_exp.pipeline.runtime.transport import Transport

TIMEOUT = 50.0


def build(prepared: Prepared, ranks: int, folder: Path, checkpoint: Callable[[int], tuple[bool, bool]]) -> Runtime:
    """This rank's part of the pipeline. `folder` is the run's folder of checkpoints; `checkpoint`: see Wishes."""
    cfg = prepared.cfg
    pipeline, last = cfg.pipeline, last_step(cfg)
    assert pipeline.boundaries is not None and pipeline.stages is not None and not isinstance(pipeline.recompute, str)
    per_epoch = prepared.task.steps_per_epoch

    def method() -> Any:
        return assemble.build_method(cfg.method, cfg.seed)

    def minibatches(step: int) -> Iterator[list[Any]]:
        while True:
            epoch, index = divmod(step, per_epoch)
            yield from prepared.task.minibatches(epoch, start=index)
            step = (epoch + 1) * per_epoch

    def save(version: int, states: dict[int, dict[str, Any]]) -> None:
        _save_rank(folder / _step_folder(version), dist.get_rank(), states)

    stages = ranks_of(pipeline.stages, ranks)
    columns = columns_of(
        method(), pipeline.stages, pipeline.microbatches, last, pipeline.slots, pipeline.recompute,
        cfg.engine.flush or "gpipe",
    )  # fmt: skip
    runtime = Runtime(
        prepared.model,
        prepared.units,
        list(pipeline.boundaries),
        method,
        assemble.build_optimizer(cfg),
        columns,
        stages,
        Transport(stages, cfg.engine.timeout or TIMEOUT, next(prepared.model.parameters()).device),
        Feed(minibatches, pipeline.microbatches),
        prepared.task.loss,
        prepared.rate(),
        seed=cfg.seed,
        clip=assemble.clip(cfg),
        wishes=Wishes(lambda version: evaluation_due(cfg, version), checkpoint, save),
    )
    runtime.save_last()
    return runtime


def restore_rank(runtime: Runtime, folder: Path, version: int) -> None:
    """Take the states of this rank's stages out of a checkpoint's files, whatever ranks wrote them."""
    states: dict[int, dict[str, Any]] = {}
    for path in sorted((folder / _step_folder(version)).glob("rank-*.pt")):
        try:
            saved = read(path)
        except Damaged:
            continue
        states |= {stage: state for stage, state in saved["stages"].items() if stage in runtime.stages}
        if len(states) == len(runtime.stages):
            break
    missing = sorted(set(runtime.stages) - set(states))
    if missing:
        raise RankFailure(f"{folder / _step_folder(version)} holds no readable state of stages {missing}")
    runtime.feed.start(version)
    runtime.restore(version, states)


def _step_folder(version: int) -> str:
    return f"step-{version:08d}"


def _save_rank(folder: Path, rank: int, states: dict[int, dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"rank-{rank}.pt", {"stages": states})


class Pipeline:
    """Rank 0's view of the whole pipeline; has what `Loop` uses of an emulator.

    Before `start`, `evaluation()` gives the model of a checkpoint that was loaded, which needs no other rank.
    """

    def __init__(self, prepared: Prepared, ranks: int = 1) -> None:
        self.prepared, self.ranks = prepared, ranks
        self.replica: nn.Module = prepared.model
        self.runtime: Runtime | None = None
        self.version = 0
        self._filled = 0
        self._resume: int | None = None
        self._units = group(prepared.units, list(prepared.cfg.pipeline.boundaries or ()))

    def start(self, folder: Path, checkpoint: Callable[[int], tuple[bool, bool]]) -> None:
        """Tell the other ranks to begin (each waits in `told`), and build this one's part."""
        tell({"go": True, "folder": str(folder), "version": self._resume})
        self.folder = folder
        self.replica = copy.deepcopy(self.prepared.model)
        self._parts = cut(self.replica, self.prepared.units, list(self.prepared.cfg.pipeline.boundaries or ()))
        self.runtime = build(self.prepared, self.ranks, folder, checkpoint)
        if self._resume is not None:
            restore_rank(self.runtime, folder, self._resume)

    @property
    def running(self) -> Runtime:
        assert self.runtime is not None, "start() comes first"
        return self.runtime

    def step(self, minibatch: Any, loss: Any, rate: float) -> Tensor:
        """Work until the next update of stage 0, the last one of that step; returns the step's loss."""
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
            raise RankFailure(failure(runtime, error)) from error

    @torch.no_grad()
    def _fill(self) -> None:
        """Bring the replica to version t."""
        if self.runtime is None or self._filled == self.version:
            return
        named = dict(self.replica.named_parameters())
        for stage, units in enumerate(self._units):
            flat, *buffers = self.runtime.snapshot(self.version, stage)
            offset = 0
            for name in (name for unit in units for name in unit.parameters):
                parameter = named[name]
                part = flat[offset : offset + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                offset += parameter.numel()
            for mine, sent in zip(buffers_of(self._parts[stage]), buffers, strict=True):
                mine.copy_(sent)
        self._filled = self.version

    def finite(self) -> bool:
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
        return [f"{_step_folder(self.version)}/rank-{rank}.pt" for rank in range(self.ranks)]

    def state_dict(self) -> dict[str, Any]:
        """What last.pt holds of the engine, once every rank has written its part of the checkpoint at version t."""
        with self._named():
            self._fill()
            self.running.wait_for_saves(self.version)
        return {"version": self.version, "ranks": self.ranks, "model": self.replica.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = self._filled = self._resume = state["version"]
        self.replica.load_state_dict(state["model"])

    def prune(self, keep: int) -> None:
        """Remove the parts of checkpoints older than the newest `keep`."""
        for old in sorted(self.folder.glob("step-*"))[:-keep]:
            if old.is_dir():
                shutil.rmtree(old)


class RuntimeLoop(Loop):
    """The training loop around a `Pipeline`: the same rows and decisions; checkpoints are decided a step ahead."""

    engine: Pipeline

    def run(self) -> bool:
        self._began = time.monotonic()
        if self.evaluated < self.step and self._evaluation_due():
            self._evaluate()
        self.engine.start(self.checkpoints.folder, self._wish)
        runtime = self.engine.running
        while self.step < self.last:
            self._train([])
            if self._evaluation_due():
                self._evaluate()
            if self.step in runtime.planned:
                self.save()
                runtime.planned.discard(self.step)
            if runtime.stop_at == self.step < self.last:
                return False
        return True

    def _wish(self, version: int) -> tuple[bool, bool]:
        """Whether there is to be a checkpoint at `version`, whose step begins now, and whether the run stops there."""
        if version == self.last:
            return False, False  # it is made in any case
        if self.stop():
            return True, True
        at_epoch_end = version % self._steps_per_epoch == 0
        if self.cfg.checkpoint.every_steps:
            return at_epoch_end or version % self.cfg.checkpoint.every_steps == 0, False
        gathering = self.engine.running.planned - {self.last}
        return not gathering and self.checkpoints.due(at_epoch_end), False

    def save(self) -> None:
        super().save()
        self.engine.prune(1 + self.cfg.checkpoint.keep)


def tell(decision: dict[str, Any]) -> None:
    """Rank 0 says what is to be done; every other rank is waiting in `told`."""
    dist.broadcast_object_list([decision], src=0)


def told() -> dict[str, Any]:
    decision: list[Any] = [None]
    dist.broadcast_object_list(decision, src=0)
    return decision[0]


def failure(runtime: Runtime, error: BaseException) -> str:
    """One line: which rank and stages, at what action and step, and why."""
    transport = runtime.transport
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{transport.name(transport.rank)} failed at {transport.where}: {type(error).__name__}: {text}"
