"""What a run's last checkpoint, or its best model, scores, computed anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import config_hash
from pipemare_exp.experiment.config.load import from_mapping
from pipemare_exp.experiment.runs.checkpoint import Checkpoints, State, read
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runtime.engine import RuntimeEngine
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.loop import BEST, Loop
from pipemare_exp.experiment.training.threads import settle


def restore(run: Run, checkpoint: str = "last", device: str | None = None) -> Loop:
    """The run as it was at a checkpoint: its task, model, emulator. Nothing on disk is changed.

    `checkpoint`: last, or best for the model of the best evaluation, which can be evaluated and not be trained.
    `device`: cpu to have it there wherever it was trained; None: where it was trained. Raises UserError where there is
    no such checkpoint or none can be read.
    """
    cfg = from_mapping(run.config)
    state = _state(run, checkpoint, cfg.checkpoint.keep)
    identity = config_hash(cfg)
    if device == "cpu":
        precision = None if cfg.precision == "tf32" else cfg.precision
        cfg = replace(cfg, device="cpu", precision=precision, engine=replace(cfg.engine, graphs=None, history=None))
    prepared = assemble.prepare(cfg)
    loop = Loop(
        prepared,
        run,
        Checkpoints(run.checkpoints),
        emit=lambda rows: None,
        stop=lambda: True,
        stepped=lambda: None,
        engine=RuntimeEngine(prepared) if cfg.engine.name == "runtime" else None,
    )
    loop.hash = identity
    loop.check(state)
    settle(cfg.threads, prepared.meter, run.meta.get("threads"))
    (loop.show if checkpoint == "best" else loop.restore)(state)
    return loop


def _state(run: Run, checkpoint: str, keep: int) -> State:
    if checkpoint == "best":
        if not (run.checkpoints / BEST).exists():
            raise UserError(f"{run.path} has kept no best model; train with checkpoint.best=true")
        return read(run.checkpoints / BEST)
    state = Checkpoints(run.checkpoints, keep).load(lambda text: print(text, file=sys.stderr))
    if state is None:
        raise UserError(f"{run.path} has no checkpoint yet; `pipemare train` with its overrides makes one")
    return state


def evaluate(run: Run, checkpoint: str = "last", **testing: Any) -> dict[str, Any]:
    """{run, step, split, metric, loss, <metric>, logged, test} of a checkpoint (last, best).

    `logged` is what the training measured at that step (None: nothing), `test` the final test of a run that is
    through, or of any where `testing` asks for it: translation's `beam` and `output` (see Translation.test).
    """
    loop = restore(run, checkpoint)
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
        "test": _test(loop, checkpoint, **testing) if testing or loop.step == loop.last else None,
    }


def _test(loop: Loop, checkpoint: str, **testing: Any) -> dict[str, Any] | None:
    """The final test: of the last checkpoint as the training's own (its mean of kept models), of the best by itself."""
    if checkpoint == "last":
        return loop.test(**testing)
    with loop.engine.evaluation() as model:
        return loop.task.test(model, None, **testing)
