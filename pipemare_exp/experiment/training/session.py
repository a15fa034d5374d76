"""One run from its configuration to its outcome: started, resumed, or found finished."""

from __future__ import annotations

import math
import shlex
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config import resolve as config
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs import provenance
from pipemare_exp.experiment.runs.checkpoint import Checkpoints
from pipemare_exp.experiment.runs.folder import Run, runs_root, write_json, write_text
from pipemare_exp.experiment.tracking.guard import GuardedTracker
from pipemare_exp.experiment.training import assemble
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.experiment.training.interrupts import StopRequest
from pipemare_exp.experiment.training.log import RunLog
from pipemare_exp.experiment.training.loop import FORMAT, Diverged, Loop
from pipemare_exp.experiment.training.progress import Progress
from pipemare_exp.experiment.training.threads import settle


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
    run = Run(runs_root(runs or cfg.runs) / config.run_name(cfg))
    title = f"{cfg.task.name} {cfg.method.label} seed {cfg.seed}"
    progress = Progress(title, config.last_step(cfg), cfg.progress, out)
    done = run.result
    if done is not None:
        progress.say(f"{title}: nothing to do, {run.path} is {done['outcome']}: {describe(done)}")
        return Result(run, done["outcome"], done, fresh=False)
    request = StopRequest(also=stop)
    # Its loop binds the method to the pipeline, which may refuse: a run that cannot be leaves no folder.
    session = _Session(prepared, run, progress, request, list(overrides), make_loop)
    run.create()
    with run.lock(), request, RunLog(run.path) as progress.log:
        return session.train()


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
    ) -> None:
        self.prepared, self.cfg, self.run, self.progress = prepared, prepared.cfg, run, progress
        self.stop, self.overrides = stop, overrides
        self.hash = config.config_hash(self.cfg)
        self.checkpoints = Checkpoints(run.checkpoints, self.cfg.checkpoint.keep)
        self.tracker: GuardedTracker | None = None
        self.error = ""
        self.loop = make_loop(prepared, run, self.checkpoints, emit=self._emit, stop=stop.wanted, stepped=progress.step)

    def train(self) -> Result:
        loop = self.loop
        self.threads = settle(self.cfg.threads, self.prepared.meter, self.run.meta.get("threads"))
        state = self.checkpoints.load(self.progress.say)
        self._check_state(state)
        if state is not None:
            loop.restore(state)
        self._record(loop, resumed=state is not None)
        self.tracker = GuardedTracker(self.cfg, self.run)
        self.progress.start(loop.step)
        try:
            outcome, code, test = self._train(loop)
        finally:
            self.progress.close()
        return self._finish(loop, outcome, code, test)

    def _check_state(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        if state["format"] != FORMAT:
            raise UserError(
                f"{self.run.checkpoints} holds checkpoints of format {state['format']}, "
                f"this version reads {FORMAT}; "
                "go on with the version that wrote them (meta.json names its commit)"
            )
        if state["config_hash"] != self.hash:
            raise UserError(f"{self.run.checkpoints} holds checkpoints of another configuration; move them away")

    def _record(self, loop: Loop, resumed: bool) -> None:
        """Write what the run is, before its first step; note this session in meta.json."""
        run, meta = self.run, self.run.meta
        again = resumed or bool(meta)
        if not meta:
            write_text(run.path / "config.yaml", config.to_yaml(self.cfg))
            write_json(run.path / "overrides.json", self.overrides)
            meta = self._new_meta()
        meta["sessions"].append(
            {
                "started": _now(),
                "commit": provenance.commit()[0],
                "resumed_from": loop.step if again else None,
            }
        )
        write_json(run.path / "meta.json", meta)
        run.cut_metrics(loop.step, loop.evaluated)
        run.set_status("running", loop.step)
        self.progress.say(f"run folder: {run.path}")
        self.progress.say(f"threads: {self.threads.count} ({self.threads.why})")
        if again:
            self.progress.say(f"resumed from step {loop.step} of {loop.last}")
        warmup = self.cfg.method.sync_warmup.steps or 0
        if warmup >= loop.last:
            self.progress.say(f"note: the warm-up (T3) of {warmup} steps covers the whole run, it is synchronous")

    def _new_meta(self) -> dict[str, Any]:
        commit, dirty = provenance.commit()
        return {
            "command": shlex.join(["pipemare", "train", *self.overrides]),
            "commit": commit,
            "dirty": dirty,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "threads": self.threads.count,
            "threads_from": self.threads.why,
            "created": _now(),
            "config_hash": self.hash,
            "metric": self.prepared.task.metric,
            "notes": dict(self.prepared.task.notes),
            "sessions": [],
        }

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
            self._emit([{"kind": "outcome", "outcome": "diverged", "step": end.step, "epoch": epoch}])
            return "diverged", 0, None
        except KeyboardInterrupt:
            return "interrupted", 130, None
        except Exception as error:  # whatever it is, the run's folder must tell of it
            write_text(self.run.path / "error.txt", traceback.format_exc())
            text = (str(error).strip().splitlines() or [""])[0]
            self.error = f"{type(error).__name__}: {text}" if not isinstance(error, UserError) else text
            if isinstance(error, UserError):
                self.run.set_status("failed", loop.step, error=self.error)
                raise
            return "failed", 1, None

    def _finish(self, loop: Loop, outcome: str, code: int, test: dict[str, Any] | None) -> Result:
        run, say = self.run, self.progress.say
        summary = self._summary(loop, outcome, test)
        if code == 0:
            write_json(run.path / "result.json", summary)
        more = {"error": self.error} if outcome == "failed" else {}
        run.set_status(outcome, loop.step, **more)
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
        cfg, sessions = self.cfg, self.run.meta["sessions"]
        whole = loop.step if outcome != "diverged" else loop.step - 1  # the step that diverged completes no epoch
        return {
            "outcome": outcome,
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
            "resumed_from": [s["resumed_from"] for s in sessions if s["resumed_from"] is not None],
        }


def describe(summary: Mapping[str, Any]) -> str:
    """A result in a few words."""
    metric = summary["metric"]
    values = [f"{name} {metric} {_shown(summary[name], metric)}" for name in ("best", "last")]
    if summary["outcome"] == "diverged":
        values.insert(0, f"at step {summary['step']}")
    return ", ".join(values) + f", {summary['seconds']:.0f} s"


def _shown(value: float | None, metric: str) -> str:
    return "not measured" if value is None or not math.isfinite(value) else metrics.of(metric).shown(value)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
