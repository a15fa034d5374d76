"""The Hogwild!-style runs in numbers: best without and with T1, difference paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.runs import select
from paper_figures.runs.axes_of_studies import AXES
from paper_figures.runs.groups import best_by_seed, mean_best, metric_of
from paper_figures.runs.sensitivity import missing
from pipemare_exp.analysis import data_of_runs
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.analysis.statistics import paired_difference, shown, verdict

__all__ = ["draw", "missing", "numbers"]
COLUMNS = [
    ("delay", "mean delay, times the pipeline's"),
    ("without", "best without T1"),
    ("with", "best with T1"),
    ("difference", "T1 less none"),
    ("verdict", "in words"),
]


def numbers(rows: Sequence[RunRow], axis: str) -> list[dict[str, Any]]:
    """One dict a mean delay that either was run at."""
    places = AXES[axis]
    delays = sorted({delay for row in rows if (delay := places.value(row)) is not None})
    table = []
    for delay in delays:
        line: dict[str, Any] = {"delay_scale": delay}
        best: dict[str, dict[int, float]] = {}
        for name, label in zip(("without", "with"), places.methods, strict=True):
            group = [row for row in rows if row.method == label and places.value(row) == delay]
            best[name], one = best_by_seed(group), mean_best(group)
            line |= {
                f"{name}_mean": one.mean,
                f"{name}_half_width": one.half_width,
                f"{name}_runs": len(group),
                f"{name}_diverged": sum(row.outcome == "diverged" for row in group),
            }
        gap = paired_difference(best["with"], best["without"])
        words = verdict(gap, metric_of(rows))
        table.append({**line, "difference": gap.mean, "difference_half_width": gap.half_width, "verdict": words})
    return table


def _cell(line: dict[str, Any], name: str, digits: int) -> str:
    lost = line[f"{name}_diverged"]
    text = shown(line[f"{name}_mean"], line[f"{name}_half_width"], digits)
    return text + (f" ({lost} of {line[f'{name}_runs']} diverged)" if lost else "")


def draw(runs: Sequence[RunRow], task: str, out_stem: Path, axis: str) -> list[Path]:
    """Means with 95 % intervals over seeds; diverged runs are counted, not averaged."""
    rows = select.for_drawing(runs, task, AXES[axis].study, AXES[axis].keys)
    table, metric = numbers(rows, axis), metric_of(rows)
    lines = [
        {
            "delay": f"{one['delay_scale']:g}",
            "without": _cell(one, "without", metric.digits),
            "with": _cell(one, "with", metric.digits),
            "difference": shown(one["difference"], one["difference_half_width"], metric.digits, sign="+"),
            "verdict": one["verdict"],
        }
        for one in table
    ]
    notes = [
        f"Scale {rows[0].scale}; best {metric.named}; 95 % intervals over seeds (Student's t).",
        *data_of_runs.note(rows),
    ]
    numbers_in_full = select.labelled(rows, table)
    return tables.save(out_stem, f"Hogwild!-style training, {task}", COLUMNS, lines, notes, numbers_in_full)
