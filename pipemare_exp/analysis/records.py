"""The runs under a folder as records: what each was told, and what it gave."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError

ENDED = ("finished", "diverged")
METRICS = ("accuracy", "bleu")


@dataclass(frozen=True)
class Record:
    """One run as a row. `best`, `last`: of the evaluations in training; `test`: see `test_score`; `problem`: the error
    of a failed one; why one whose `outcome` is "damaged" cannot be read."""

    name: str
    path: str
    outcome: str
    task: str | None = None
    scale: str | None = None
    method: str | None = None
    seed: int | None = None
    metric: str | None = None
    step: int | None = None
    best: float | None = None
    last: float | None = None
    test: float | None = None
    seconds: float | None = None
    notes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The keys of `pipemare runs --json`; `problem` only where there is one."""
        keys = (
            "name",
            "task",
            "scale",
            "method",
            "seed",
            "outcome",
            "step",
            "metric",
            "best",
            "last",
            "test",
            "seconds",
        )
        shown = {key: getattr(self, key) for key in keys}
        return shown | ({"problem": self.problem} if self.problem else {})


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """{"a": {"b": [1, 2]}} -> {"a.b": "[1, 2]"}; text stays as it is."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The flattened settings that tell two variants apart: those of the run's identity but the seed."""
    from pipemare_exp.experiment.config.identity import NOT_IDENTITY

    neutral = {"seed", *NOT_IDENTITY}
    prefixes = tuple(f"{name}." for name in neutral)
    flat = flatten(config)
    return {k: text for k, text in flat.items() if text != "null" and k not in neutral and not k.startswith(prefixes)}


def collect(runs_root: Path) -> list[Record]:
    """The records of all run directories (or committed rows) under a folder, by name; [] where there is no folder."""
    from pipemare_exp.experiment.runs.folder import find_runs

    root = Path(runs_root)
    if not root.is_dir():
        return []
    if (root / "runs.csv").is_file() or any(root.glob("*/runs.csv")):
        from pipemare_exp.analysis import rows  # imports seaborn, which run directories need not

        return sorted(map(from_row, rows.read(root)), key=lambda record: record.name)
    return sorted((read(run) for run in find_runs(root)), key=lambda record: record.name)


def from_row(row: Any) -> Record:
    """The record of a `pipemare_exp.analysis.rows.RunRow`."""
    names = ("name", "outcome", "task", "scale", "method", "seed", "metric", "step", "best", "last", "seconds")
    values = {name: getattr(row, name) for name in names}
    return Record(path="", test=test_score(row.test), notes=dict(row.notes), settings=dict(row.settings), **values)


def read(run: Any) -> Record:
    """The record of one run directory; a torn or missing file makes it a damaged one, never an exception."""
    path = Path(run.path)
    try:
        return _read(run, path)
    except Exception as error:  # what a crash or a hand may have left in the files is without limit
        text = next(iter(str(error).strip().splitlines()), "")
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return Record(path.name, str(path), "damaged", problem=f"{kind}{text}")


def _read(run: Any, path: Path) -> Record:
    config, outcome = run.config, run.outcome
    result, status = run.result or {}, run.status or {}
    if "task" not in config or "method" not in config:
        raise UserError("config.yaml holds no whole configuration")
    if outcome in ENDED and not result:
        raise UserError(f"status.json says {outcome}, but result.json is missing")
    if not result:
        result = _so_far(run.metrics("eval"))
    return Record(
        name=path.name,
        path=str(path),
        outcome=outcome,
        task=config["task"]["name"],
        scale=config["scale"],
        method=config["method"]["label"],
        seed=config["seed"],
        metric=result.get("metric"),
        step=result.get("step", status.get("step")),
        best=_finite(result.get("best")),
        last=_finite(result.get("last")),
        test=test_score(result.get("test")),
        seconds=_finite(result.get("seconds")),
        notes=dict(run.meta.get("notes") or {}) | dict(result.get("notes") or {}),
        settings=settings_of(config),
        problem=status.get("error") if outcome == "failed" else None,
    )


def test_score(test: Mapping[str, Any] | None) -> float | None:
    """The score of the final test in percent, where a task has one beside its evaluations: of translation the BLEU of
    words split as the training data are, which is what the published numbers are."""
    return _finite((test or {}).get("tokenised_bleu"))


def _so_far(evals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a result would say of the evaluations that a run without one has had until now."""
    metric = next((name for name in METRICS for row in evals if name in row), None)
    values = [row[metric] for row in evals if _finite(row.get(metric)) is not None] if metric else []
    if not values:
        return {"metric": metric}
    return {"metric": metric, "best": max(values), "last": values[-1], "seconds": evals[-1].get("seconds")}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
