"""Table 3: the ablation in numbers, each combination against the synchronous runs of the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.runs import select
from paper_figures.runs.ablation import missing
from paper_figures.style import in_order, look
from pipemare_exp import methods
from pipemare_exp.analysis import published
from pipemare_exp.analysis.rows import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval, paired_difference, verdict

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


def _best(rows: Sequence[RunRow]) -> dict[int, float]:
    """Best metric by seed of the finished runs."""
    return {row.seed: row.best for row in rows if row.outcome == "finished" and row.best is not None}


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a method: n, diverged, mean and half width of best and last, paired difference, verdict."""
    synchronous = _best([row for row in rows if row.synchronous])
    table = []
    for label in in_order(row.method for row in rows):
        group = [row for row in rows if row.method == label]
        finished = [row for row in group if row.outcome == "finished"]
        best = mean_with_interval(list(_best(group).values()))
        last = mean_with_interval([row.last for row in finished if row.last is not None])
        test = mean_with_interval([row.test_score for row in finished if row.test_score is not None])
        gap = paired_difference(_best(group), synchronous)
        words = (
            "the reference"
            if methods.synchronous(label)
            else "diverged"
            if not finished
            else ("no synchronous run" if not synchronous else verdict(gap))
        )
        table.append(
            {
                "method": label,
                "runs": len(group),
                "diverged": len(group) - len(finished),
                "best_mean": best.mean,
                "best_half_width": best.half_width,
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


def draw(runs: Sequence[Any], task: str, out_stem: Path) -> list[Path]:
    """All methods that the runs hold; the synchronous ones are the reference."""
    rows = select.for_drawing(runs, task, "ablation")
    table = numbers(rows)
    entries: list[dict[str, Any]] = []
    shown = []
    for one in table:
        found = published.best_of(task, one["method"])
        entries += found

        def pair(name: str, one: dict[str, Any] = one, sign: str = "") -> str:
            mean, half = one[f"{name}_mean" if name != "difference" else name], one[f"{name}_half_width"]
            if mean is None:
                return "–"
            return f"{mean:{sign}.1f}" + ("" if half is None else f" ± {half:.1f}")

        shown.append(
            {
                "method": look(one["method"]).name,
                "runs": f"{one['runs']} ({one['diverged']})",
                "best": pair("best"),
                "last": pair("last"),
                "difference": pair("difference", sign="+"),
                "test": pair("test"),
                "verdict": one["verdict"],
                "published": "; ".join(map(published.shown, found)) or "–",
            }
        )
    tested = any(one["test_mean"] is not None for one in table)
    about_test = "Test: BLEU of the test set with the final weights; best and last are of the validation set."
    notes = [
        f"Scale {rows[0].scale}; metric: {rows[0].metric} in percent after each epoch; mean ± half width of "
        "the 95 % interval over seeds (Student's t), differences paired by seed; diverged runs are counted, not "
        "averaged.",
        *([about_test] if tested else []),
        *published.sources_note(entries),
    ]
    return tables.save(
        out_stem,
        f"Ablation, {task}",
        [column for column in COLUMNS if tested or column[0] != "test"],
        shown,
        notes,
        numbers=[{"task": task, "scale": rows[0].scale, **one} for one in table],
    )
