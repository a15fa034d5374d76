"""What a run's last checkpoint, or its best model, scores, computed anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from pipemare_exp import data
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import config_hash
from pipemare_exp.experiment.config.load import from_mapping
from pipemare_exp.experiment.runs import same_data
from pipemare_exp.experiment.runs.checkpoint import Checkpoints, State, read
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.runtime.engine import RuntimeEngine
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.loop import BEST, Loop
from pipemare_exp.experiment.training.threads import settle


def restore(run: Run, checkpoint: str = "last", device: str | None = None, other_data: bool = False) -> Loop:
    """The run as it was at a checkpoint: its task, model, emulator. Nothing on disk is changed.

    `checkpoint`: last, or best for the model of the best evaluation, which can be evaluated and not be trained.
    `device`: cpu to have it there wherever it was trained; None: where it was trained. `other_data`: take
    the data that are here, if they are not those that the run was trained on. Raises UserError where there is no such
    checkpoint or none can be read, and for other data.
    """
    cfg = from_mapping(run.config)
    state = _state(run, checkpoint, cfg.checkpoint.keep)
    other = list(same_data.check(run, data.inputs(cfg), other_data, same_data.READING))
    identity = config_hash(cfg)
    if device == "cpu":
        precision = None if cfg.precision == "tf32" else cfg.precision
        cfg = replace(cfg, device="cpu", precision=precision, engine=replace(cfg.engine, graphs=None, history=None))
    if other:
        print(f"note: other data than the run was trained on: {same_data.named(other)}", file=sys.stderr)
        cfg = replace(cfg, steps_per_epoch=None, data=replace(cfg.data, subset=None, text=None))  # the data tell
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
    loop.hash, loop.other_data = identity, other
    loop.check(state)
    ended = (run.result or {}).get("step")
    if checkpoint == "last" and ended is not None and state["step"] < ended and run.outcome == "finished":
        print(
            f"note: {run.path} ended at step {ended}; its newest checkpoint is older, of step {state['step']}",
            file=sys.stderr,
        )
    settle(cfg.threads, prepared.meter, run.meta.get("threads"))
    try:
        (loop.show if checkpoint == "best" else loop.restore)(state)
    except (KeyError, RuntimeError, ValueError) as error:
        if not other:
            raise
        raise UserError(
            f"{run.path} has weights of another shape than the other data ask for ({same_data.named(other)}); it needs "
            "its own"
        ) from error
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


def evaluate(run: Run, checkpoint: str = "last", other_data: bool = False, **testing: Any) -> dict[str, Any]:
    """{run, step, split, metric, loss, <metric>, logged, test, other_data} of a checkpoint (last, best).

    `logged` is what the training measured at that step (None: nothing), `test` the final test of a run that is
    through, or of any where `testing` asks for it: translation's `beam` and `output` (see Translation.test). Where
    `other_data` allows data that are not as the run was trained on, the result's `other_data` names them.
    """
    loop = restore(run, checkpoint, other_data=other_data)
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
        "other_data": loop.other_data,
    }


def _test(loop: Loop, checkpoint: str, **testing: Any) -> dict[str, Any] | None:
    """The final test: of the last checkpoint as the training's own (its mean of kept models), of the best by itself."""
    if checkpoint == "last":
        return loop.test(**testing)
    with loop.engine.evaluation() as model:
        return loop.task.test(model, None, **testing)
