"""The training loop of one run: steps, losses looked at in batches, evaluations, checkpoints.

A step's number is the number of updates done once it is through (1, 2, ...), in every row and message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import config_hash
from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs import rows
from pipemare_exp.experiment.runs.checkpoint import Checkpoints, State, write
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.training.assemble import Prepared
from pipemare_exp.pipeline.engine import Engine
from pipemare_exp.pipeline.observed import Observed, Staleness

FORMAT = 3
"""Of a checkpoint's contents; a reader refuses what it does not know."""


BEST = "best.pt"
"""The model of the best evaluation, in the folder of checkpoints (`checkpoint.best`)."""


class Diverged(Exception):
    """`cause`, of `step` or after it, is not finite: an outcome, not an error.

    `cause`: loss, weights, buffers, optimizer or method; `counts`: how many numbers of the state
    after the step are not finite, as the row of an evaluation has them.
    """

    def __init__(self, step: int, cause: str, counts: dict[str, int | None] | None = None):
        super().__init__(f"diverged at step {step}: {cause}")
        self.step, self.cause, self.counts = step, cause, counts or {}


def evaluation_due(cfg: Config, step: int) -> bool:
    """Whether the model is evaluated after `step` updates: after every so many epochs, and at the end."""
    assert cfg.steps_per_epoch is not None
    epochs, rest = divmod(step, cfg.steps_per_epoch)
    return step == last_step(cfg) or (rest == 0 and epochs % cfg.evaluation.every_epochs == 0)


def row_due(cfg: Config, step: int) -> bool:
    """Whether there is a row for the training until `step` updates: every so many of them, and before an evaluation."""
    return step % cfg.log_every == 0 or evaluation_due(cfg, step)


def diagnosis_due(cfg: Config, step: int) -> bool:
    """Whether the staleness of the step that makes `step` updates is looked at."""
    wanted = cfg.diagnostics
    every = wanted.every_steps is not None and step % wanted.every_steps == 0
    return every or (wanted.at_evaluations and evaluation_due(cfg, step))


class Loop:
    """Trains from the current step to the last. `emit` gets the rows of metrics.jsonl, `stop` says when to
    leave; `engine` is what makes the steps, a fresh emulator if none is given.

    `run()` returns True when all steps are done and False when `stop()` asked to leave; it raises Diverged.
    """

    def __init__(
        self,
        prepared: Prepared,
        run: Run,
        checkpoints: Checkpoints,
        emit: Callable[[list[dict[str, Any]]], None],
        stop: Callable[[], bool],
        stepped: Callable[[], None],
        engine: Engine | None = None,
    ):
        self.cfg, self.task = prepared.cfg, prepared.task
        self.metric = metrics.of(self.task.metric)
        self.run_folder, self.checkpoints = run, checkpoints
        self.emit, self.stop, self.stepped = emit, stop, stepped
        self.engine: Engine = engine or prepared.emulator()
        self.rate = prepared.rate()
        self.hash = config_hash(self.cfg)
        self.last = last_step(self.cfg)
        self.step = 0
        self.evaluated = 0
        self.best: float | None = None
        self.latest: float | None = None
        self.other_data: list[str] = []
        """Names of data that are not what the run was trained on, where it was restored in spite of them."""
        self._seconds, self._began = 0.0, time.monotonic()
        self._losses: list[Tensor] = []  # on the device, not yet looked at
        self._window: list[float] = []  # looked at, not yet in a row

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, all its sessions together."""
        return self._seconds + time.monotonic() - self._began

    @property
    def epochs_done(self) -> int:
        return self.step // self._steps_per_epoch

    @property
    def _steps_per_epoch(self) -> int:
        assert self.cfg.steps_per_epoch is not None
        return self.cfg.steps_per_epoch

    def run(self) -> bool:
        self._began = time.monotonic()
        if self.evaluated < self.step and self._evaluation_due():
            self._evaluate()  # the run was stopped between an epoch's last step and its evaluation
        while self.step < self.last:
            epoch, index = divmod(self.step, self._steps_per_epoch)
            for minibatch in self.task.minibatches(epoch, start=index):
                self._train(minibatch)
                if self.stop():
                    self.save()
                    return False
                if self.step == self.last:
                    break
                if self._checkpoint_due():
                    self.save()
            if self._evaluation_due():
                self._evaluate()
            every = self.cfg.checkpoint.every_steps
            if self.step == self.last or self.stop() or every or self.checkpoints.due(at_epoch_end=True):
                self.save()
            if self.stop() and self.step < self.last:
                return False
        return True

    def _train(self, minibatch: list[Any]) -> None:
        made = self.step + 1
        due, diagnosed = row_due(self.cfg, made), diagnosis_due(self.cfg, made)
        loss = self.engine.step(
            minibatch, self.task.loss, self.rate(self.step), observed=due or diagnosed, diagnosed=diagnosed
        )
        self._losses.append(loss)
        self.step = made
        self.stepped()
        if due or diagnosed:
            self._look()
            observed = self.engine.observed()
            if due:
                self._report(observed)
            if observed.staleness is not None:
                self._tell_staleness(observed.staleness)

    def _look(self) -> None:
        """Bring the losses to the host; raise Diverged at the first that is not finite."""
        if not self._losses:
            return
        losses, first = torch.stack(self._losses).tolist(), self.step - len(self._losses) + 1
        self._losses = []
        for number, loss in enumerate(losses, start=first):
            if not math.isfinite(loss):
                self.step = number - 1
                self._report()
                self.step = number
                raise Diverged(number, "loss")
            self._window.append(loss)

    def _report(self, observed: Observed | None = None) -> None:
        """One row for the steps since the last one: their mean loss, and of the last its rate and its `observed`."""
        if not self._window:
            return
        row = {
            "kind": "train",
            "step": self.step,
            "epoch": (self.step - 1) // self._steps_per_epoch + 1,
            "loss": sum(self._window) / len(self._window),
            "rate": self.rate(self.step - 1),
            "grad_norm": None if observed is None else observed.grad_norm,
            "max_delay": None if observed is None else observed.max_delay,
            "seconds": round(self.seconds, 3),
        }
        self._window = []
        self.emit([row])

    def _tell_staleness(self, staleness: Staleness) -> None:
        """A row of the step's staleness, stage by stage."""
        epoch = (self.step - 1) // self._steps_per_epoch + 1
        row = {"kind": "staleness", "step": self.step, "epoch": epoch, **vars(staleness)}
        self.emit([{**row, "seconds": round(self.seconds, 3)}])

    def _evaluation_due(self) -> bool:
        return evaluation_due(self.cfg, self.step)

    def _evaluate(self) -> None:
        found = self.engine.non_finite()
        counts = {f"non_finite_{what}": number for what, number in found.items()}
        if bad := [what for what, number in found.items() if number]:
            raise Diverged(self.step, bad[0], counts)
        with self.engine.evaluation() as model:
            values = self.task.evaluate(model)
            self.latest = values[self.metric.name]
            if self.cfg.evaluation.average:
                self._keep_weights(model, self.cfg.evaluation.average)
            if self.best is None or self.metric.better(self.latest, than=self.best):
                self.best = self.latest
                if self.cfg.checkpoint.best:
                    self._keep_best(model)
        self.evaluated = self.step
        row = {"kind": "eval", "step": self.step, "epoch": self.epochs_done, "split": self.task.eval_split}
        self.emit([{**row, **values, **counts, "seconds": round(self.seconds, 3)}])

    def _keep_weights(self, model: torch.nn.Module, count: int) -> None:
        """Keep the model of this evaluation for averaging, and the `count` - 1 before it."""
        write(self.run_folder.checkpoints / f"weights-{self.step:08d}.pt", _copied(model))
        for old in self.kept_weights()[:-count]:
            old.unlink()

    def _keep_best(self, model: torch.nn.Module) -> None:
        """Keep the model of this evaluation as best.pt."""
        identity = {"format": FORMAT, "config_hash": self.hash, "step": self.step}
        write(self.run_folder.checkpoints / BEST, {**identity, "model": _copied(model)})

    def kept_weights(self) -> list[Any]:
        """Files of the models kept for averaging, oldest first."""
        return sorted(self.run_folder.checkpoints.glob("weights-*.pt"))

    def test(self, **options: Any) -> dict[str, Any] | None:
        """The separate final test, where the task has one; `options` are the task's own (translation: beam, output)."""
        with self.engine.evaluation() as model:
            return self.task.test(model, self.kept_weights() if self.cfg.evaluation.average else None, **options)

    def _checkpoint_due(self) -> bool:
        if self.step % self._steps_per_epoch == 0:
            return False  # after the evaluation
        every = self.cfg.checkpoint.every_steps
        return self.step % every == 0 if every else self.checkpoints.due(at_epoch_end=False)

    def save(self) -> None:
        """Write the state after `step`. Losses are looked at first: no checkpoint is of a diverged run."""
        self._look()
        state = {
            "format": FORMAT,
            "config_hash": self.hash,
            "step": self.step,
            "evaluated": self.evaluated,
            "best": self.best,
            "latest": self.latest,
            "seconds": self.seconds,
            "window": self._window,
            "metrics": rows.mark(self.run_folder.metrics_file),
            "emulator": self.engine.state_dict(),
            "parts": self.engine.parts,
        }
        self.checkpoints.save(state)
        self.run_folder.set_status("running", self.step)

    def unfit(self, state: State) -> str | None:
        """Why a run cannot go on from the checkpoint `state`: rows of metrics.jsonl before it are not there any more.

        Raises UserError for a checkpoint of another configuration or version.
        """
        self.check(state)
        return rows.lost(self.run_folder.metrics_file, state["metrics"])

    def check(self, state: State) -> None:
        """Raises UserError for a checkpoint of another configuration or version."""
        folder = self.run_folder.checkpoints
        if state.get("format") != FORMAT:
            raise UserError(
                f"{folder} holds checkpoints of format {state.get('format')}, this version reads {FORMAT}; "
                "go on with the version that wrote them (meta.json names its commit)"
            )
        if state["config_hash"] != self.hash:
            raise UserError(f"{folder} holds checkpoints of another configuration; move them away")

    def show(self, state: State) -> None:
        """Take the model of best.pt, to be evaluated and not to be trained."""
        with self.engine.evaluation() as model:
            model.load_state_dict(state["model"])
        self.step = state["step"]

    def restore(self, state: State) -> None:
        """Go on from a checkpoint, bit for bit."""
        self.engine.load_state_dict(state["emulator"])
        self.step, self.evaluated = state["step"], state["evaluated"]
        self.best, self.latest = state["best"], state["latest"]
        self._window = list(state["window"])
        self._seconds, self._began = state["seconds"], time.monotonic()


def _copied(model: torch.nn.Module) -> State:
    """The model's state with storage of its own: a view would be saved with the whole flat buffer."""
    return {name: value.clone() for name, value in model.state_dict().items()}
