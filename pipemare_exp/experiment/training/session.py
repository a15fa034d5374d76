"""One run from its configuration to its outcome: started, resumed, or found finished."""

from __future__ import annotations

import errno
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pipemare_exp import data, metrics
from pipemare_exp.data.digests import Input
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import config_hash, run_name
from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs import rows, same_data
from pipemare_exp.experiment.runs.checkpoint import Checkpoints, State
from pipemare_exp.experiment.runs.credentials import hide
from pipemare_exp.experiment.runs.folder import Run, runs_root
from pipemare_exp.experiment.runs.writing import remove_left_over, write_json, write_text
from pipemare_exp.experiment.tracking.guard import GuardedTracker
from pipemare_exp.experiment.tracking.tensorboard import check_installed
from pipemare_exp.experiment.training import assemble, record
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.interrupts import StopRequest
from pipemare_exp.experiment.training.log import RunLog
from pipemare_exp.experiment.training.loop import Diverged, Loop
from pipemare_exp.experiment.training.progress import Progress
from pipemare_exp.experiment.training.threads import settle

CAUSES = {
    "loss": "its loss is",
    "weights": "the weights are",
    "buffers": "the model's buffers, such as BatchNorm's statistics, are",
    "optimizer": "the optimizer's state is",
    "method": "the method's buffers, such as T2's delta, are",
}
"""What a run diverged by (`cause`), in words."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write meets on a full disk, beyond a quota and beyond the largest file allowed."""


@dataclass(frozen=True)
class Result:
    """How a run ended. `summary` is what result.json holds (for an interrupted or failed run: so far).

    `exit_code`: 0 for finished and diverged (both are results), 128 + signal when interrupted, 1 when failed.
    `fresh` is False when the run was found finished and nothing was trained.
    """

    run: Run
    outcome: str
    summary: dict[str, Any]
    exit_code: int = 0
    fresh: bool = True


def train(
    cfg: Config,
    overrides: Sequence[str] = (),
    *,
    runs: str | Path | None = None,
    out: TextIO | None = None,
    prepared: Prepared | None = None,
    stop: Callable[[], bool] | None = None,
    make_loop: Callable[..., Loop] = Loop,
) -> Result:
    """Train what `cfg` describes, or go on with it, or say that it is done.

    `overrides` are recorded with the run; `runs` is the folder of runs (else cfg.runs, else PIPEMARE_RUNS, else
    results/runs); messages and progress go to `out` (standard output); `stop` is asked after every step and may
    interrupt the run as a signal does; `make_loop` makes the training loop. Raises UserError for what a user can mend;
    any other error inside the training is recorded in RUN/error.txt and gives the outcome "failed".
    """
    prepared = prepared or assemble.prepare(cfg)
    cfg = prepared.cfg
    run = Run(runs_root(runs or cfg.runs) / run_name(cfg))
    title = f"{cfg.task.name} {cfg.method.label} seed {cfg.seed}"
    progress = Progress(title, last_step(cfg), cfg.progress, out)
    inputs = data.inputs(cfg)
    other = same_data.check(run, inputs, cfg.data.changed == "allow", same_data.TRAINING)
    if other:
        progress.say(f"note: other data than the run was trained on: {same_data.named(list(other))}")
    done = run.result
    if done is not None:
        progress.say(f"{title}: nothing to do, {run.path} is {done['outcome']}: {describe(done)}")
        return Result(run, done["outcome"], done, fresh=False)
    if cfg.tracking.name == "tensorboard":
        check_installed()
    request = StopRequest(also=stop)
    # Its loop binds the method to the pipeline, which may refuse: a run that cannot be leaves no folder.
    session = _Session(prepared, run, progress, request, list(overrides), make_loop, inputs, other)
    run.create()
    with run.lock(), request:
        try:
            with RunLog(run.path) as progress.log:
                return session.train()
        except OSError as error:  # before the first step or after the last: what the training meets is an outcome
            raise UserError(_on_disk(error, run)) from error


class _Session:
    """One process's work on a run."""

    def __init__(
        self,
        prepared: Prepared,
        run: Run,
        progress: Progress,
        stop: StopRequest,
        overrides: list[str],
        make_loop: Callable[..., Loop],
        inputs: dict[str, Input],
        other: same_data.Other,
    ) -> None:
        self.prepared, self.cfg, self.run, self.progress = prepared, prepared.cfg, run, progress
        self.stop, self.overrides = stop, overrides
        self.hash = config_hash(self.cfg)
        self.checkpoints = Checkpoints(run.checkpoints, self.cfg.checkpoint.keep)
        self.tracker: GuardedTracker | None = None
        self.error, self.cause = "", ""
        self.sessions: list[dict[str, Any]] = []
        self.inputs, self.other = inputs, other
        self.loop = make_loop(prepared, run, self.checkpoints, emit=self._emit, stop=stop.wanted, stepped=progress.step)

    def train(self) -> Result:
        loop = self.loop
        known = record.readable(lambda: self.run.meta, self.progress.say) or {}
        self.threads = settle(self.cfg.threads, self.prepared.meter, known.get("threads"))
        remove_left_over(self.run.path)
        state = self.checkpoints.load(self.progress.say, loop.unfit)
        if state is not None:
            loop.restore(state)
        self._record(loop, state, known)
        self.tracker = GuardedTracker(self.cfg, self.run)
        self.progress.start(loop.step)
        try:
            outcome, code, test = self._train(loop)
        finally:
            self.progress.close()
        return self._finish(loop, outcome, code, test)

    def _record(self, loop: Loop, state: State | None, known: dict[str, Any]) -> None:
        """Write what the run is, before its first step; add this session to what is `known` of it in meta.json."""
        run = self.run
        again = state is not None or bool(known)
        record.write_what_is_missing(run, self.cfg, self.overrides, self.progress.say)
        meta = {**record.new_meta(self.prepared, self.hash, self.overrides, self.threads, self.inputs), **known}
        self.sessions = [*meta["sessions"], record.new_session(loop.step if again else None, self.other)]
        write_json(run.path / "meta.json", {**meta, "sessions": self.sessions})
        rows.keep(run.metrics_file, 0 if state is None else state["metrics"]["rows"])
        run.set_status("running", loop.step)
        self.progress.say(f"run folder: {run.path}")
        self.progress.say(f"threads: {self.threads.count} ({self.threads.why})")
        if again:
            self.progress.say(f"resumed from step {loop.step} of {loop.last}")
        warmup = self.cfg.method.sync_warmup.steps or 0
        if warmup >= loop.last:
            self.progress.say(f"note: the warm-up (T3) of {warmup} steps covers the whole run, it is synchronous")

    def _emit(self, rows: list[dict[str, Any]]) -> None:
        self.run.append(rows)
        for row in rows:
            self.progress.row(row, self.prepared.task.metric)
        if self.tracker is not None:
            self.tracker.log_rows(rows)

    def _train(self, loop: Loop) -> tuple[str, int, dict[str, Any] | None]:
        """(outcome, exit code, test)."""
        try:
            if not loop.run():
                return "interrupted", 128 + (self.stop.signal or 0), None
            return "finished", 0, loop.test()
        except Diverged as end:
            loop.step = end.step
            epoch = (end.step - 1) // (self.cfg.steps_per_epoch or 1) + 1
            self.cause = end.cause
            row = {"kind": "outcome", "outcome": "diverged", "step": end.step, "epoch": epoch, "cause": end.cause}
            self._emit([{**row, **end.counts}])
            return "diverged", 0, None
        except KeyboardInterrupt:
            return "interrupted", 130, None
        except Exception as error:  # whatever it is, the run's folder must tell of it
            trace = hide(traceback.format_exc())
            text = (hide(str(error)).strip().splitlines() or [""])[0]
            if isinstance(error, OSError) and error.errno in FULL:
                self.error = _on_disk(error, self.run)
            else:
                self.error = f"{type(error).__name__}: {text}" if not isinstance(error, UserError) else text
            self._note(lambda: write_text(self.run.path / "error.txt", trace))
            if isinstance(error, UserError):
                self._note(lambda: self.run.set_status("failed", loop.step, error=self.error))
                raise
            return "failed", 1, None

    def _note(self, write: Callable[[], None]) -> None:
        """Record a failure in the run's folder, which may be what the failure is about."""
        try:
            write()
        except OSError as error:
            self.progress.say(f"{self.run.path} cannot tell of the failure: {error.strerror or error}")

    def _finish(self, loop: Loop, outcome: str, code: int, test: dict[str, Any] | None) -> Result:
        run, say = self.run, self.progress.say
        summary = self._summary(loop, outcome, test)
        if code == 0:
            summary["rows"] = rows.mark(run.metrics_file)
            write_json(run.path / "result.json", summary)
        if outcome == "failed":
            self._note(lambda: run.set_status(outcome, loop.step, error=self.error))
        else:
            run.set_status(outcome, loop.step)
        if self.tracker is not None:
            self.tracker.finish(summary)
        if outcome == "interrupted":
            say(f"interrupted at step {loop.step} of {loop.last}; the same command goes on from the last checkpoint")
        elif outcome == "failed":
            say(f"failed at step {loop.step}: {self.error}; traceback in {run.path / 'error.txt'}")
        else:
            say(f"{self.progress.title}: {outcome}: {describe(summary)}")
        return Result(run, outcome, summary, code)

    def _summary(self, loop: Loop, outcome: str, test: dict[str, Any] | None) -> dict[str, Any]:
        """The keys of result.json. A diverged run's `best` and `last` are what was measured before."""
        cfg = self.cfg
        whole = loop.step if outcome != "diverged" else loop.step - 1  # the step that diverged completes no epoch
        return {
            "outcome": outcome,
            **({"cause": self.cause} if self.cause else {}),
            "step": loop.step,
            "epoch": whole // (cfg.steps_per_epoch or 1),
            "metric": self.prepared.task.metric,
            "best": loop.best,
            "last": loop.latest,
            "test": test,
            "config_hash": self.hash,
            "seed": cfg.seed,
            "method": cfg.method.label,
            "task": cfg.task.name,
            "scale": cfg.scale,
            "seconds": round(loop.seconds, 3),
            "resumed_from": [s["resumed_from"] for s in self.sessions if s["resumed_from"] is not None],
        }


def describe(summary: Mapping[str, Any]) -> str:
    """A result in a few words."""
    metric = summary["metric"]
    values = [f"{name} {metric} {_shown(summary[name], metric)}" for name in ("best", "last")]
    if summary["outcome"] == "diverged":
        values.insert(0, f"at step {summary['step']} ({CAUSES[summary.get('cause', 'loss')]} not finite)")
    return ", ".join(values) + f", {summary['seconds']:.0f} s"


def _shown(value: float | None, metric: str) -> str:
    return "not measured" if value is None or not math.isfinite(value) else metrics.of(metric).shown(value)


def _on_disk(error: OSError, run: Run) -> str:
    """What a file system's error means for a run."""
    return (
        f"cannot write in {run.path}: {error.strerror or error}; mend that (make room, or move the folder of runs) and "
        "give the same command: it goes on from the last checkpoint"
    )
