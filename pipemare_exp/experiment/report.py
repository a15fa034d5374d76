"""What did the runs under a folder give, and how do the methods compare?

Runs are compared within a task and scale. Runs of one method whose settings differ in more than the seed are
never pooled: they become *variants*, each named by the settings in which it differs from the others.

How diverged runs count: n is the number of runs that came to a result, finished or diverged, and `outcomes`
says how many of which. Means and intervals are over the finished ones only: a metric from before the divergence
is not what the method ends with, and there is no honest number to put in its place. A group without a finished
run has null means, and the verdict says "diverged 3 of 3".
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipemare_exp.errors import UserError, suggest
from pipemare_exp.experiment.statistics import Estimate, mean_with_interval, paired_difference, verdict

LADDER = ("gpipe", "pipedream", "async", "t1", "t2", "t1+t2", "t1+t2+t3")
REFERENCE = "gpipe"
ENDED = ("finished", "diverged")
METRICS = ("accuracy", "bleu")


@dataclass(frozen=True)
class Record:
    """One run as a row. `problem`: the error of a failed one; why one whose `outcome` is "damaged" cannot be read."""

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
    from pipemare_exp.experiment.config import NOT_IDENTITY  # imports Hydra, which the mirror need not

    neutral = {"seed", *NOT_IDENTITY}
    prefixes = tuple(f"{name}." for name in neutral)
    flat = flatten(config)
    return {k: text for k, text in flat.items() if text != "null" and k not in neutral and not k.startswith(prefixes)}


def collect(runs_root: Path) -> list[Record]:
    """The records of all run directories (or committed rows) under a folder, by name; [] where there is no folder."""
    from pipemare_exp.experiment.run_directory import find_runs

    root = Path(runs_root)
    if not root.is_dir():
        return []
    if (root / "runs.csv").is_file() or any(root.glob("*/runs.csv")):
        from paper_figures import rows  # imports seaborn, which run directories need not

        return sorted(map(from_row, rows.read(root)), key=lambda record: record.name)
    return sorted((read(run) for run in find_runs(root)), key=lambda record: record.name)


def from_row(row: Any) -> Record:
    """The record of a `paper_figures.rows.RunRow`."""
    names = ("name", "outcome", "task", "scale", "method", "seed", "metric", "step", "best", "last", "seconds")
    values = {name: getattr(row, name) for name in names}
    return Record(path="", notes=dict(row.notes), settings=dict(row.settings), **values)


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
        seconds=_finite(result.get("seconds")),
        notes=dict(run.meta.get("notes") or {}) | dict(result.get("notes") or {}),
        settings=settings_of(config),
        problem=status.get("error") if outcome == "failed" else None,
    )


def _so_far(evals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a result would say of the evaluations that a run without one has had until now."""
    metric = next((name for name in METRICS for row in evals if name in row), None)
    values = [row[metric] for row in evals if _finite(row.get(metric)) is not None] if metric else []
    if not values:
        return {"metric": metric}
    return {"metric": metric, "best": max(values), "last": values[-1], "seconds": evals[-1].get("seconds")}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def ladder_place(method: str | None) -> tuple[int, str]:
    """Sorts methods as the paper builds them up; others after, by name."""
    return (LADDER.index(method) if method in LADDER else len(LADDER), method or "")


def compare(records: Iterable[Record], task: str, interval: str = "t") -> list[dict[str, Any]]:
    """One row per scale, method and variant of a task, in the ladder's order.

    Keys: task, scale, method, variant (where there are several), n, outcomes, metric, best_mean, best_ci95,
    last_mean, last_ci95 (half widths), difference {n, mean, ci95} of the last metric from the synchronous
    runs, paired by seed (None for these themselves and without any), verdict, published (a list of {value, source,
    what}, None where nothing was published), subset (of what data, if one).
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.task == task:
            key = json.dumps(record.settings, sort_keys=True)
            groups.setdefault((str(record.scale), str(record.method), key), []).append(record)
    ordered = sorted(groups, key=lambda key: (key[0], ladder_place(key[1]), key[2]))
    rows = []
    for scale, method, key in ordered:
        rivals = [groups[other] for other in ordered if other[:2] == (scale, method)]
        references = [groups[other] for other in ordered if other[:2] == (scale, REFERENCE)]
        variant = _variant(groups[scale, method, key], rivals)
        rows.append(_row(task, groups[scale, method, key], variant, references, interval))
    return rows


def _row(
    task: str,
    group: Sequence[Record],
    variant: str | None,
    references: Sequence[Sequence[Record]],
    interval: str,
) -> dict[str, Any]:
    outcomes = Counter(record.outcome for record in group)
    finished = [record for record in group if record.outcome == "finished"]
    best = mean_with_interval([r.best for r in finished if r.best is not None], interval=interval)
    last = mean_with_interval([r.last for r in finished if r.last is not None], interval=interval)
    difference, words = _difference(group, references, interval)
    subset = "; ".join(sorted({f"{key}: {text}" for record in group for key, text in record.notes.items()}))
    return {
        "task": task,
        "scale": group[0].scale,
        "method": group[0].method,
        **({"variant": variant} if variant else {}),
        "n": sum(outcomes[outcome] for outcome in ENDED),
        "outcomes": dict(sorted(outcomes.items())),
        "metric": next((record.metric for record in group if record.metric), None),
        "best_mean": best.mean,
        "best_ci95": best.half_width,
        "last_mean": last.mean,
        "last_ci95": last.half_width,
        "difference": None
        if difference is None
        else {"n": difference.n, "mean": difference.mean, "ci95": difference.half_width},
        "verdict": words,
        "published": published_best(task, str(group[0].method)),
        **({"subset": subset} if subset else {}),
    }


def published_best(task: str, method: str) -> list[dict[str, Any]] | None:
    """The published best metrics of a method on a task, each with its source; None where there is none."""
    from paper_figures import published

    found = published.best_of(task, method)
    return [
        {
            "value": one["value"],
            "source": published.source(one),
            "what": f"best {one['metric']}, the paper's own model and length" + _note(one),
        }
        for one in found
    ] or None


def _note(entry: Mapping[str, Any]) -> str:
    return f"; {entry['note']}" if entry.get("note") else ""


def _variant(group: Sequence[Record], rivals: Sequence[Sequence[Record]]) -> str | None:
    """The settings in which a group differs from the other groups of its method: "optimizer.rate=0.1"."""
    every = [other[0].settings for other in rivals]
    if len(every) < 2:
        return None
    keys = sorted(set().union(*every))
    differing = [key for key in keys if len({settings.get(key) for settings in every}) > 1]
    return ", ".join(f"{key}={group[0].settings.get(key, 'unset')}" for key in differing)


def _difference(
    group: Sequence[Record], references: Sequence[Sequence[Record]], interval: str
) -> tuple[Estimate | None, str]:
    """The paired difference of the last metric from the synchronous runs, and what it allows one to say."""
    ended = [record for record in group if record.outcome in ENDED]
    diverged = sum(record.outcome == "diverged" for record in ended)
    if not ended:
        return None, "no result yet"
    tail = f"diverged {diverged} of {len(ended)}" if diverged else ""
    if diverged == len(ended):
        return None, tail
    if group[0].method == REFERENCE:
        return None, "; ".join(filter(None, ["the reference", tail]))
    reference = _reference(group[0], references)
    if reference is None:
        why = "no synchronous run" if not references else "no synchronous run with these settings"
        return None, "; ".join(filter(None, [why, tail]))
    difference = paired_difference(_last_by_seed(group), _last_by_seed(reference), interval=interval)
    return difference, "; ".join(filter(None, [verdict(difference), tail]))


def _reference(record: Record, references: Sequence[Sequence[Record]]) -> Sequence[Record] | None:
    """The synchronous runs to compare with: the only ones, or those of the same settings."""

    def rest(one: Record) -> dict[str, str]:
        return {k: v for k, v in one.settings.items() if not k.startswith(("method.", "pipeline.slots"))}

    if len(references) == 1:
        return references[0]
    return next((group for group in references if rest(group[0]) == rest(record)), None)


def _last_by_seed(group: Sequence[Record]) -> dict[int, float]:
    finished = (record for record in group if record.outcome == "finished")
    return {record.seed: record.last for record in finished if record.seed is not None and record.last is not None}


def tasks() -> tuple[str, ...]:
    """The names of the tasks that runs can have."""
    from pipemare_exp.experiment.schema import TASKS

    return TASKS


def check_task(task: str) -> None:
    """UserError for a name that no task has."""
    if task not in tasks():
        raise UserError(f'no task "{task}"; allowed: {", ".join(tasks())}{suggest(task, tasks())}')
