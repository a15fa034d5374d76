"""The Hogwild!-style runs in numbers: best without and with T1, difference paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.runs import select
from paper_figures.runs.hogwild import AXIS, LABELS, missing
from pipemare_exp.analysis.rows import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval, paired_difference, verdict

__all__ = ["draw", "missing", "numbers"]
COLUMNS = [
    ("delay", "mean delay, times the pipeline's"),
    ("without", "best without T1"),
    ("with", "best with T1"),
    ("difference", "T1 less none"),
    ("verdict", "in words"),
]


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a mean delay that either was run at."""
    delays = sorted({row.delay_scale for row in rows if row.method in LABELS and row.delay_scale is not None})
    table = []
    for delay in delays:
        line: dict[str, Any] = {"delay_scale": delay}
        best: dict[str, dict[int, float]] = {}
        for name, label in zip(("without", "with"), LABELS, strict=True):
            group = [row for row in rows if row.method == label and row.delay_scale == delay]
            best[name] = {row.seed: row.best for row in group if row.outcome == "finished" and row.best is not None}
            one = mean_with_interval(list(best[name].values()))
            line |= {
                f"{name}_mean": one.mean,
                f"{name}_half_width": one.half_width,
                f"{name}_runs": len(group),
                f"{name}_diverged": sum(row.outcome == "diverged" for row in group),
            }
        gap = paired_difference(best["with"], best["without"])
        table.append({**line, "difference": gap.mean, "difference_half_width": gap.half_width, "verdict": verdict(gap)})
    return table


def _cell(line: dict[str, Any], name: str) -> str:
    lost = line[f"{name}_diverged"]
    mean, half = line[f"{name}_mean"], line[f"{name}_half_width"]
    text = tables.number(mean, 1) + ("" if half is None else f" ± {half:.1f}")
    return text + (f" ({lost} of {line[f'{name}_runs']} diverged)" if lost else "")


def draw(runs: Sequence[Any], task: str, out_stem: Path) -> list[Path]:
    """Means with 95 % intervals over seeds; diverged runs are counted, not averaged."""
    rows = select.for_drawing(runs, task, "hogwild", AXIS.keys)
    table = numbers(rows)
    shown = [
        {
            "delay": f"{one['delay_scale']:g}",
            "without": _cell(one, "without"),
            "with": _cell(one, "with"),
            "difference": "–"
            if one["difference"] is None
            else f"{one['difference']:+.1f}"
            + ("" if one["difference_half_width"] is None else f" ± {one['difference_half_width']:.1f}"),
            "verdict": one["verdict"],
        }
        for one in table
    ]
    notes = [f"Scale {rows[0].scale}; best {rows[0].metric} in percent; 95 % intervals over seeds (Student's t)."]
    return tables.save(
        out_stem,
        f"Hogwild!-style training, {task}",
        COLUMNS,
        shown,
        notes,
        numbers=[{"task": task, "scale": rows[0].scale, **one} for one in table],
    )
