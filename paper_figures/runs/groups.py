"""What do the runs of one method have in common? Their number, how many diverged, their best metric over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper_figures.style import in_order, look
from pipemare_exp import metrics
from pipemare_exp.analysis import published
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.analysis.statistics import Estimate, mean_with_interval, shown
from pipemare_exp.metrics import Metric


def metric_of(rows: Sequence[RunRow]) -> Metric:
    """The metric of rows of one task."""
    return metrics.of(rows[0].metric)


def by_method(rows: Sequence[RunRow]) -> list[tuple[str, list[RunRow]]]:
    """(label, its runs) of every method, in the order of legends and tables."""
    return [(label, [row for row in rows if row.method == label]) for label in in_order(row.method for row in rows)]


def finished(rows: Sequence[RunRow]) -> list[RunRow]:
    """The runs that finished."""
    return [row for row in rows if row.outcome == "finished"]


def best_by_seed(rows: Sequence[RunRow]) -> dict[int, float]:
    """The best metric of the finished runs of one method, by seed."""
    return {row.seed: row.best for row in finished(rows) if row.best is not None}


def mean_best(rows: Sequence[RunRow]) -> Estimate:
    """The mean over the finished runs of their best metric; diverged ones are counted elsewhere, never averaged."""
    return mean_with_interval([row.best for row in finished(rows) if row.best is not None])


def counted(label: str, rows: Sequence[RunRow]) -> dict[str, Any]:
    """The numbers with which a table of methods begins: runs, diverged, mean best and its half width."""
    best = mean_best(rows)
    return {
        "method": label,
        "runs": len(rows),
        "diverged": len(rows) - len(finished(rows)),
        "best_mean": best.mean,
        "best_half_width": best.half_width,
    }


def cells(one: dict[str, Any], metric: Metric) -> dict[str, str]:
    """`counted` as a table shows it, and the published numbers beside it."""
    return {
        "method": look(one["method"]).name,
        "runs": f"{one['runs']} ({one['diverged']})",
        "best": shown(one["best_mean"], one["best_half_width"], metric.digits),
        "published": "; ".join(map(published.shown, published_of([one]))) or "–",
    }


def published_of(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The published best metrics of a table's methods on its task."""
    return [entry for one in table for entry in published.best_of(one["task"], one["method"])]
