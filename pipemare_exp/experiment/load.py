"""A run in a notebook: its configuration, its rows, its result, and the model that it trained."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.config.load import from_mapping
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.folder import Run, open_run

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTS = ("last", "best")


@dataclass(frozen=True)
class LoadedRun:
    """What a run was told and what came of it.

    `metrics`: the rows of metrics.jsonl, whose keys docs/output.md lists; `result`: result.json, None while the outcome
    is not final; `checkpoint`: whose weights `model` has, last or best. `other_data`: whether `model` may be made with
    other data than the run was trained on.
    """

    path: Path
    config: Config
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    checkpoint: str
    other_data: bool = False

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, on the CPU and in eval mode; made when it is first asked for, which needs the task's data.

        Raises UserError where the run has no such checkpoint, or the data here are not those that it was trained on.
        """
        from pipemare_exp.experiment.evaluate import restore

        loop = restore(Run(self.path), self.checkpoint, device="cpu", other_data=self.other_data)
        model = loop.task.build_model()  # of its own: the emulator's parameters are views into flat buffers
        with loop.engine.evaluation() as trained:
            model.load_state_dict(trained.state_dict())
        return model.eval()


def load_run(
    run: str | os.PathLike[str],
    runs: str | os.PathLike[str] | None = None,
    checkpoint: str = "last",
    other_data: bool = False,
) -> LoadedRun:
    """The run in the folder `run`, or of that name in the folder `runs` (default: PIPEMARE_RUNS, else results/runs).

    `checkpoint`: last, or best for the model of the best evaluation, which `checkpoint.best=true` keeps. `other_data`:
    whether the model may be made where the data are not those that it was trained on. Raises UserError where there is
    no such run or one of its files is damaged.
    """
    if checkpoint not in CHECKPOINTS:
        raise UserError(f"checkpoint={checkpoint}: allowed are last, best{suggest(checkpoint, CHECKPOINTS)}")
    found = open_run(run, runs)
    return LoadedRun(found.path, from_mapping(found.config), found.metrics(), found.result, checkpoint, other_data)
