"""One rank's part of a pipeline, out of a run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runtime import rank_files
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.loop import evaluation_due, row_due
from pipemare_exp.pipeline.model.cutting import cut
from pipemare_exp.pipeline.runtime.feed import Feed
from pipemare_exp.pipeline.runtime.rank import Runtime
from pipemare_exp.pipeline.runtime.routes import columns_of
from pipemare_exp.pipeline.runtime.training import Hooks, Training
from pipemare_exp.pipeline.runtime.transport import Transport
from pipemare_exp.pipeline.schedule.columns import Columns
from pipemare_exp.pipeline.schedule.ranks import ranks_of

TIMEOUT = 50.0
"""Seconds that an action may take, and a rank may be silent, where `engine.timeout` is not set."""


def run_columns(cfg: Config) -> Columns:
    """The columns of all steps of the run. UserError where its method follows no schedule."""
    pipeline = cfg.pipeline
    assert pipeline.stages is not None and not isinstance(pipeline.recompute, str)
    return columns_of(
        assemble.build_method(cfg.method, cfg.seed), pipeline.stages, pipeline.microbatches, last_step(cfg),
        pipeline.slots, pipeline.recompute, cfg.engine.flush or "gpipe",
    )  # fmt: skip


def check(prepared: Prepared, ranks: int) -> None:
    """UserError, with the reason, for what the runtime cannot do."""
    pipeline = prepared.pipeline
    ranks_of(pipeline.stages, ranks)
    cut(prepared.model, pipeline.units, pipeline.boundaries)
    run_columns(prepared.cfg)


def build(prepared: Prepared, ranks: int, folder: Path, checkpoint: Callable[[int], tuple[bool, bool]]) -> Runtime:
    """This rank's part of the pipeline. `folder` is the run's folder of checkpoints; `checkpoint`: see Hooks."""
    cfg, pipeline = prepared.cfg, prepared.pipeline
    per_epoch = prepared.task.steps_per_epoch

    def minibatches(step: int) -> Iterator[list[Any]]:
        while True:
            epoch, index = divmod(step, per_epoch)
            yield from prepared.task.minibatches(epoch, start=index)
            step = (epoch + 1) * per_epoch

    def save(version: int, states: dict[int, dict[str, Any]]) -> None:
        rank_files.save(folder, version, dist.get_rank(), states)

    device = next(prepared.model.parameters()).device
    runtime = Runtime(
        prepared.model,
        pipeline,
        Training(
            lambda: assemble.build_method(cfg.method, cfg.seed),
            assemble.build_optimizer(cfg),
            prepared.task.loss,
            prepared.rate(),
            cfg.seed,
            assemble.clip(cfg),
        ),
        run_columns(cfg),
        Transport(ranks_of(pipeline.stages, ranks), cfg.engine.timeout or TIMEOUT, device),
        Feed(minibatches, pipeline.microbatches),
        Hooks(lambda version: evaluation_due(cfg, version), checkpoint, save, lambda version: row_due(cfg, version)),
    )
    runtime.save_last()
    return runtime
