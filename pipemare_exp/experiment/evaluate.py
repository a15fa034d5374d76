"""What a run's last checkpoint scores, computed anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import resolve as config
from pipemare_exp.experiment.runs.checkpoint import Checkpoints
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runtime.engine import Pipeline
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.loop import Loop
from pipemare_exp.experiment.training.threads import settle


def restore(run: Run, **evaluation: Any) -> Loop:
    """The run as it was at its last checkpoint: its task, model, emulator. Nothing on disk is changed.

    `evaluation` replaces settings of that group (beam, ...). The device and the place of the data are this
    machine's. Raises UserError where there is no checkpoint or none can be read.
    """
    cfg = config.from_mapping(run.config)
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, **evaluation))
    state = Checkpoints(run.checkpoints, cfg.checkpoint.keep).load(lambda text: print(text, file=sys.stderr))
    if state is None:
        raise UserError(f"{run.path} has no checkpoint yet; `pipemare train` with its overrides makes one")
    prepared = assemble.prepare(cfg)
    loop = Loop(
        prepared,
        run,
        Checkpoints(run.checkpoints),
        emit=lambda rows: None,
        stop=lambda: True,
        stepped=lambda: None,
        engine=Pipeline(prepared) if cfg.engine.name == "runtime" else None,
    )
    settle(cfg.threads, prepared.meter, run.meta.get("threads"))
    loop.restore(state)
    return loop


def evaluate(run: Run, **testing: Any) -> dict[str, Any]:
    """{run, step, split, metric, loss, <metric>, logged, test} of the last checkpoint.

    `logged` is what the training measured at that step (None: nothing), `test` the final test of a run that is
    through, or of any where `testing` asks for it: translation's `beam` and `output` (see Translation.test).
    """
    loop = restore(run)
    if testing and loop.task.metric != "bleu":
        raise UserError(f"{run.path} is a run of {loop.task.name}: --beam and --output are for translation")
    with loop.engine.evaluation() as model:
        scores = loop.task.evaluate(model)
    metric = loop.task.metric
    logged = [row[metric] for row in run.metrics("eval") if row["step"] == loop.step]
    return {
        "run": str(run.path),
        "step": loop.step,
        "split": loop.task.eval_split,
        "metric": metric,
        **scores,
        "logged": logged[-1] if logged else None,
        "test": loop.test(**testing) if testing or loop.step == loop.last else None,
    }
