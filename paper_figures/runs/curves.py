"""Curves of a metric per method: mean and 95 % interval over seeds, diverged runs marked where they ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from paper_figures.runs.groups import by_method, metric_of
from paper_figures.style import line_style, look
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.analysis.statistics import mean_with_interval
from pipemare_exp.metrics import Metric

Place = Callable[[RunRow, dict[str, Any]], float]


def metric_label(rows: Sequence[RunRow]) -> str:
    """The label of the metric's axis, with the split that was scored where it is not the test set."""
    label = metric_of(rows).axis
    splits = {one["split"] for row in rows for one in row.evals if one["split"]}
    if splits == {"test"}:
        return f"test {label}"
    return f"{label}, {' and '.join(sorted(splits))} set" if splits else label


def seeds_text(rows: Sequence[RunRow]) -> str:
    """`3 seeds`, or `1 to 3 seeds` where some cells (a method with its settings) have fewer: for a title."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        seeds.setdefault((row.method, repr(sorted(row.settings.items()))), set()).add(row.seed)
    low, high = min(map(len, seeds.values())), max(map(len, seeds.values()))
    return f"{low} to {high} seeds" if low < high else f"{high} seed{'s' if high > 1 else ''}"


def error_bars(metric: Metric, mean: float, half_width: float | None) -> tuple[float, float]:
    """Lengths below and above a mean: an interval is not drawn beyond the metric's range."""
    if half_width is None:
        return (0.0, 0.0)
    below = half_width if metric.lowest is None else min(half_width, mean - metric.lowest)
    above = half_width if metric.highest is None else min(half_width, metric.highest - mean)
    return below, above


def draw_means(
    axes: Axes, metric: Metric, label: str, places: Sequence[float], points: Sequence[dict[str, Any]]
) -> None:
    """One method's line through `best_mean` of its points, with their intervals; a point without a mean is left out."""
    drawn = [(x, one) for x, one in zip(places, points, strict=True) if one["best_mean"] is not None]
    bars = [error_bars(metric, one["best_mean"], one["best_half_width"]) for _, one in drawn]
    axes.errorbar(
        [x for x, _ in drawn],
        [one["best_mean"] for _, one in drawn],
        yerr=list(zip(*bars, strict=True)) if bars else None,
        capsize=2,
        elinewidth=0.8,
        **line_style(label),
    )


def draw_cross(axes: Axes, metric: Metric, x: float | None, y: float | None, color: str) -> None:
    """The mark of a diverged run; None (for one of the two): at the metric's worse end of that axis."""
    end = 0.0 if metric.higher_is_better else 1.0
    transform = axes.transData
    if x is None:
        transform = axes.get_yaxis_transform()
    elif y is None:
        transform = axes.get_xaxis_transform()
    axes.plot(
        [end if x is None else x],
        [end if y is None else y],
        transform=transform,
        marker="X",
        markersize=6,
        color=color,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linestyle="none",
        zorder=5,
        clip_on=False,
    )


def mark_diverged(axes: Axes, text: str = "diverged here") -> None:
    """The legend's entry for the crosses of diverged runs."""
    axes.plot([], [], marker="X", markersize=6, color="#777777", linestyle="none", label=text)


def group_curve(rows: Sequence[RunRow], place: Place) -> list[dict[str, Any]]:
    """Mean over seeds at every epoch that all of these runs (one method) have reached, and their interval.

    Past the first epoch that one of them lacks there is no mean: the others alone would be a choice of
    survivors.
    """
    metric = metric_of(rows)
    by_epoch = [{one["epoch"]: one for one in row.finite_evals} for row in rows]
    shared = sorted(set.intersection(*(set(one) for one in by_epoch))) if by_epoch else []
    points = []
    for epoch in shared:
        estimate = mean_with_interval([one[epoch]["value"] for one in by_epoch])
        places = [place(row, one[epoch]) for row, one in zip(rows, by_epoch, strict=True)]
        mean, half = estimate.mean, estimate.half_width
        assert mean is not None  # every run has a value at a shared epoch
        points.append(
            {
                "method": rows[0].method,
                "epoch": epoch,
                "x": sum(places) / len(places),
                "mean": mean,
                "low": None if half is None else metric.clipped(mean - half),
                "high": None if half is None else metric.clipped(mean + half),
                "n": len(rows),
                "diverged": sum(row.outcome == "diverged" for row in rows),
            }
        )
    return points


def draw_curves(axes: Axes, rows: Sequence[RunRow], place: Place) -> list[dict[str, Any]]:
    """Draws every method's curve on `axes` and returns what was drawn, one dict per method and epoch.

    `place(row, evaluation)` is the horizontal position. Runs that ended early are drawn thin on their own
    past the mean; a cross marks the last evaluation of a diverged one, at the metric's worse end if it never
    had one.
    """
    table: list[dict[str, Any]] = []
    for label, runs in by_method(rows):
        group = sorted(runs, key=lambda row: row.seed)
        points = group_curve(group, place)
        style = line_style(label)
        xs, means = [one["x"] for one in points], [one["mean"] for one in points]
        every = max(1, len(xs) // 8)
        axes.plot(xs, means, markevery=(every - 1, every), **style)
        if points and points[0]["low"] is not None:
            axes.fill_between(
                xs,
                [one["low"] for one in points],
                [one["high"] for one in points],
                color=style["color"],
                alpha=0.18,
                linewidth=0,
            )
        for row in group:
            _draw_alone(axes, row, place, points[-1]["epoch"] if points else 0)
        table += points
        table += [_end(row, place) for row in group if row.outcome == "diverged"]
    return table


def _draw_alone(axes: Axes, row: RunRow, place: Place, shared: int) -> None:
    """The part of one run beyond the mean's last epoch, and the cross of a diverged one."""
    evals = row.finite_evals
    rest = [one for one in evals if one["epoch"] >= shared]
    one = look(row.method)
    if len(rest) > 1:
        axes.plot(
            [place(row, e) for e in rest],
            [e["value"] for e in rest],
            color=one.color,
            linestyle=one.dash,
            linewidth=0.6,
        )
    if row.outcome == "diverged":
        end = _end(row, place)
        draw_cross(axes, metric_of([row]), end["x"], end["mean"], one.color)


def _end(row: RunRow, place: Place) -> dict[str, Any]:
    """Where a diverged run ended: its last finite evaluation (value None and place 0 where it had none)."""
    evals = row.finite_evals
    last = evals[-1] if evals else None
    return {
        "method": row.method,
        "epoch": last["epoch"] if last else 0,
        "x": place(row, last) if last else 0.0,
        "mean": last["value"] if last else None,
        "n": 1,
        "seed": row.seed,
        "diverged_at_step": row.step,
    }
