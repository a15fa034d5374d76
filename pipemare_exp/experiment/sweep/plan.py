"""Which run does every cell of a sweep lead to, how far is it, and how long will the rest take?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipemare_exp import metrics
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.identity import run_name
from pipemare_exp.experiment.config.lengths import last_step
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.config.resolve import cuts_at_pieces, resolve
from pipemare_exp.experiment.config.schema import Config
from pipemare_exp.experiment.runs.folder import Run
from pipemare_exp.experiment.sweep.study import Cell

STATES = ("done", "diverged", "running", "failed", "interrupted", "missing")
"""done and diverged are results; running: some process trains it now; interrupted: it resumes; missing: no run yet."""
TO_DO = ("missing", "interrupted")


@dataclass
class Planned:
    """A cell with the run that it leads to. `refused`: why there can be none; then `run` is None."""

    cell: Cell
    run: Run | None
    steps: int = 0
    refused: str | None = None
    failure: str | None = field(default=None, compare=False)
    """Of this session, where the run's folder could not tell."""

    @property
    def state(self) -> str:
        """One of STATES, as the disk says now."""
        if self.run is None or self.failure:
            return "failed"
        try:
            locked = self.run.is_locked()  # before the result, which a training writes while it holds the lock
            result, status = self.run.result, self.run.status
        except UserError as error:  # damaged: no reason to lose the other cells
            self.failure = str(error)
            return "failed"
        if result is not None:
            return "done" if result["outcome"] == "finished" else "diverged"
        if locked:
            return "running"
        if status:
            return "failed" if status["state"] == "failed" else "interrupted"
        return "interrupted" if (self.run.path / "config.yaml").is_file() else "missing"

    @property
    def error(self) -> str:
        """The line that says why it failed."""
        if self.run is None or self.failure:
            return self.failure or self.refused or ""
        return self.run.status.get("error", "")

    @property
    def step(self) -> int:
        """Updates done, as far as the run has told."""
        rows = self._rows()
        return min(int(rows[-1]["step"]), self.steps) if rows else 0

    @property
    def score(self) -> str:
        """The last measured metric in words; empty before the first evaluation."""
        metric = self.run.meta.get("metric", "") if self.run else ""
        values = [row[metric] for row in self._rows("eval") if row.get(metric) is not None]
        return f"{metric} {metrics.of(metric).shown(values[-1])}" if values else ""

    def _rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        try:
            return self.run.metrics(kind) if self.run else []
        except (OSError, UserError):  # the training itself says what is wrong with the file
            return []

    @property
    def seconds(self) -> float | None:
        """Seconds that the training took, once it is over."""
        result = self.run.result if self.run else None
        return result["seconds"] if result else None


_Shape = tuple[list[int], list[int] | None, int, int | None, str | None, str]
"""Sizes of the weight units, first units of the pieces, steps an epoch, the subset's size, the text, the device."""


class Resolver:
    """Resolves configurations, loading each task's data and building each model once."""

    def __init__(self) -> None:
        self._shapes: dict[str, _Shape] = {}

    def resolve(self, cfg: Config) -> Config:
        """`cfg` as `pipemare train` would resolve it. Raises UserError as that would."""
        asks = [asdict(part) for part in (cfg.task, cfg.data, cfg.model)]
        rest = [cfg.seed, cfg.device, cfg.memory_format, cfg.pipeline.microbatches, cuts_at_pieces(cfg)]
        key = json.dumps([asks, rest], sort_keys=True)
        if key not in self._shapes:
            self._shapes[key] = _shape(cfg)
        sizes, starts, steps_per_epoch, subset, text, device = self._shapes[key]
        return resolve(replace(cfg, device=device), sizes, steps_per_epoch, starts, subset, text)


def _shape(cfg: Config) -> _Shape:
    from pipemare_exp.experiment.training import assemble  # imports torch

    prepared = assemble.prepare(replace(cfg, threads=None))
    units = prepared.units
    starts = None
    if cuts_at_pieces(cfg):
        starts = assemble.piece_starts(prepared.model, units, assemble.pieces(prepared.model))
    task = prepared.task
    sizes = [unit.numel for unit in units]
    return sizes, starts, task.steps_per_epoch, task.subset, task.text, prepared.cfg.device


def plan(cells: Sequence[Cell], root: Path) -> list[Planned]:
    """Every cell with its run under `root`; of cells that lead to one run, the first.

    A cell that is refused says why. Where all are, for one reason, that is the user's to mend: it is raised.
    """
    resolver, planned, seen = Resolver(), [], set()
    for cell in cells:
        try:
            cfg = resolver.resolve(_emulated(load(cell.overrides)))
        except UserError as error:
            planned.append(Planned(cell, None, refused=str(error)))
            continue
        name = run_name(cfg)
        if name not in seen:
            seen.add(name)
            planned.append(Planned(cell, Run(root / name), last_step(cfg)))
    reasons = {one.refused for one in planned}
    if len(reasons) == 1 and None not in reasons:
        raise UserError(str(reasons.pop()))
    return planned


def _emulated(cfg: Config) -> Config:
    if cfg.engine.name != "emulator":
        raise UserError(
            f"engine={cfg.engine.name} in a sweep: its workers are single processes, which emulate; start such runs "
            "one by one with `pipemare train`"
        )
    return cfg


def seconds_left(planned: Sequence[Planned], jobs: int = 1) -> float | None:
    """Seconds until all that is missing, interrupted or running is done, `jobs` at a time; None where nothing of the
    task has finished yet, and there is something to do.

    From the median seconds per step of finished cells: of the same task, method and place where there are some,
    else of the same task and method, else of the task.
    """
    todo = [one for one in planned if one.state in (*TO_DO, "running")]
    rates: dict[tuple[Any, ...], list[float]] = {}
    for one in planned:
        seconds = one.seconds
        if seconds and one.state == "done" and one.steps:
            for key in _kinds(one.cell):
                rates.setdefault(key, []).append(seconds / one.steps)
    total = 0.0
    for one in todo:
        known = next((rates[key] for key in _kinds(one.cell) if key in rates), None)
        if known is None:
            return None
        total += statistics.median(known) * (one.steps - one.step)
    longest = min(max(jobs, 1), max(len(todo), 1))
    return total / longest


def _kinds(cell: Cell) -> list[tuple[Any, ...]]:
    """What a cell's time per step depends on, most alike first."""
    return [(cell.task, cell.method, str(cell.point)), (cell.task, cell.method), (cell.task,)]


def as_json(planned: Sequence[Planned]) -> list[dict[str, Any]]:
    """What `--dry-run --json` prints."""
    return [
        {
            "task": one.cell.task,
            "scale": one.cell.scale,
            "method": one.cell.method,
            "seed": one.cell.seed,
            "overrides": list(one.cell.overrides),
            "run": one.run.name if one.run else None,
            "state": (state := one.state),
            "step": one.steps if state == "done" else one.step,
            "steps": one.steps,
            "seconds": one.seconds,
            "error": one.error or None,
        }
        for one in planned
    ]
