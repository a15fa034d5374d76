"""Table 3: the ablation in numbers, each combination against the synchronous runs of the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.runs import select
from paper_figures.runs.ablation import missing
from paper_figures.runs.groups import best_by_seed, by_method, cells, counted, finished, metric_of, published_of
from pipemare_exp import methods
from pipemare_exp.analysis import data_of_runs, published
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval, paired_difference, shown, verdict

__all__ = ["draw", "missing", "numbers"]
COLUMNS = [
    ("method", "method"),
    ("runs", "runs (diverged)"),
    ("best", "best"),
    ("last", "last"),
    ("difference", "best, less synchronous"),
    ("test", "test"),
    ("verdict", "in words"),
    ("published", "published best"),
]


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a method: n, diverged, mean and half width of best and last, paired difference, verdict."""
    metric = metric_of(rows)
    synchronous = best_by_seed([row for row in rows if row.synchronous])
    table = []
    for label, group in by_method(rows):
        last = mean_with_interval([row.last for row in finished(group) if row.last is not None])
        test = mean_with_interval([row.test_score for row in finished(group) if row.test_score is not None])
        gap = paired_difference(best_by_seed(group), synchronous)
        words = (
            "the reference"
            if methods.synchronous(label)
            else "diverged"
            if not finished(group)
            else ("no synchronous run" if not synchronous else verdict(gap, metric))
        )
        table.append(
            {
                **counted(label, group),
                "last_mean": last.mean,
                "last_half_width": last.half_width,
                "test_mean": test.mean,
                "test_half_width": test.half_width,
                "difference": None if methods.synchronous(label) else gap.mean,
                "difference_half_width": None if methods.synchronous(label) else gap.half_width,
                "pairs": gap.n,
                "verdict": words,
            }
        )
    return table


def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """All methods that the runs hold; the synchronous ones are the reference."""
    rows = select.for_drawing(runs, task, "ablation")
    table, metric = select.labelled(rows, numbers(rows)), metric_of(rows)
    lines = [
        {
            **cells(one, metric),
            "last": shown(one["last_mean"], one["last_half_width"], metric.digits),
            "difference": shown(one["difference"], one["difference_half_width"], metric.digits, sign="+"),
            "test": shown(one["test_mean"], one["test_half_width"], metric.digits),
            "verdict": one["verdict"],
        }
        for one in table
    ]
    tested = any(one["test_mean"] is not None for one in table)
    about_test = f"Test: {metric.axis} of the test set with the final weights; best and last are of the validation set."
    notes = [
        f"Scale {rows[0].scale}; metric: {metric.named} after each epoch; mean ± half width of the 95 % interval over "
        "seeds (Student's t), differences paired by seed; diverged runs are counted, not averaged.",
        *([about_test] if tested else []),
        *data_of_runs.note(rows),
        *published.sources_note(published_of(table)),
    ]
    columns = [column for column in COLUMNS if tested or column[0] != "test"]
    return tables.save(out_stem, f"Ablation, {task}", columns, lines, notes, table)
