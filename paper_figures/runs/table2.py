"""Table 2: quality, time to a target and memory, end to end, ours beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.costs.memory import weight_memory
from paper_figures.runs import select
from paper_figures.runs.groups import by_method, cells, counted, finished, metric_of, published_of
from paper_figures.runs.metric_over_time import modelled_time
from pipemare_exp import methods
from pipemare_exp.analysis import data_of_runs, published
from pipemare_exp.analysis.row import RunRow
from pipemare_exp.pipeline.schedule import costs

COLUMNS = [
    ("method", "method"),
    ("runs", "runs (diverged)"),
    ("best", "best"),
    ("epochs", "epochs to target"),
    ("throughput", "modelled throughput"),
    ("time", "modelled time to target"),
    ("speedup", "over GPipe"),
    ("memory", "weights + optimizer (W)"),
    ("published", "published best"),
]


def missing(rows: Sequence[RunRow]) -> list[str]:
    """The methods of the end-to-end comparison of which `rows` hold no run."""
    return select.lacking(rows, select.END_TO_END)


def cost_optimizer(row: RunRow) -> str:
    """The name under which costs.py knows a run's optimizer."""
    if row.optimizer == "sgd":
        return "sgd_momentum" if float(row.settings.get("optimizer.momentum", 0)) > 0 else "sgd"
    return "adamw"


def reaches(row: RunRow, target: float) -> dict[str, Any] | None:
    """The first evaluation whose metric is as good as `target`, None where none is."""
    metric = metric_of([row])
    return next((one for one in row.finite_evals if metric.reaches(one["value"], target)), None)


def numbers(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """One dict a method; means over the seeds, None for what a run that diverged or fell short does not have.

    The target is the synchronous runs' mean best metric, made worse by the metric's margin. `epochs_to_target` and
    `time_to_target` are given only where every run of the method reached it. Throughput is steps per
    modelled time over GPipe's.
    """
    metric = metric_of(rows)
    synchronous = [row.best for row in rows if row.synchronous and row.best is not None]
    target = metric.worsened(sum(synchronous) / len(synchronous), by=metric.margin) if synchronous else None
    table: list[dict[str, Any]] = []
    for label, group in by_method(rows):
        hits = [] if target is None else [(row, reaches(row, target)) for row in group]
        reached = [(row, one) for row, one in hits if one is not None]
        every = len(reached) == len(group) and bool(reached)
        times = [modelled_time(row, one["step"]) for row, one in reached]
        first, declared = group[0], methods.costs_of(label)
        rates = [
            (row.step or 0) / modelled_time(row, row.step) * costs.gpipe_ratio(row.stages, row.microbatches)
            for row in finished(group)
            if row.step and row.stages and row.microbatches
        ]
        table.append(
            {
                **counted(label, group),
                "target": target,
                "reached": len(reached),
                "epochs_to_target": sum(one["epoch"] for _, one in reached) / len(reached) if every else None,
                "throughput_over_gpipe": sum(rates) / len(rates) if rates else None,
                "time_to_target": sum(times) / len(times) if every else None,
                "memory_W": None
                if declared is None
                else weight_memory(declared, first.stages or 1, first.microbatches or 1, cost_optimizer(first)),
                "stages": first.stages,
                "microbatches": first.microbatches,
            }
        )
    gpipe = next((one["time_to_target"] for one in table if methods.synchronous(one["method"])), None)
    for one in table:
        one["speedup_over_gpipe"] = gpipe / one["time_to_target"] if gpipe and one["time_to_target"] else None
    return table


def draw(runs: Sequence[RunRow], task: str, out_stem: Path) -> list[Path]:
    """Ours and published side by side; where nothing was published for the task the column says so."""
    rows = select.for_drawing(runs, task, "end_to_end")
    table, metric = select.labelled(rows, numbers(rows)), metric_of(rows)
    entries = published_of(table)
    lines = [
        {
            **cells(one, metric),
            "epochs": f"not reached ({one['reached']} of {one['runs']})"
            if one["epochs_to_target"] is None
            else f"{one['epochs_to_target']:.1f}",
            "throughput": _or_dash(one["throughput_over_gpipe"], "{:.2f}×"),
            "time": _or_dash(one["time_to_target"], "{:,.0f}"),
            "speedup": _or_dash(one["speedup_over_gpipe"], "{:.2f}×"),
            "memory": _or_dash(one["memory_W"], "{:.2f}"),
        }
        for one in table
    ]
    sizes = "; ".join(f"P = {p}, N = {n}" for p, n in sorted({(row.stages, row.microbatches) for row in rows}))
    target, sign = table[0]["target"], "less" if metric.higher_is_better else "plus"
    notes = [
        f"Scale {rows[0].scale}, {sizes}; best {metric.axis} of the evaluations after each epoch: mean ± half width "
        "of the 95 % interval over seeds (Student's t); diverged runs are counted, not averaged.",
        "No target: no synchronous run finished."
        if target is None
        else f"Target: {target:.2f}, synchronous mean best {sign} {metric.margin} (our choice).",
        "Modelled time in asynchronous steps: a synchronous or warm-up step costs (N+P-1)/N, any other 1. "
        "Memory by the model: stages of equal size, no gradients, no activations.",
        *_subset_notes(rows),
        *data_of_runs.note(rows),
        *published.sources_note(entries),
    ]
    if entries:
        notes.append("The published runs are the paper's own models and lengths; ours are those of the scale above.")
    return tables.save(out_stem, f"End to end, {task}", COLUMNS, lines, notes, table)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _subset_notes(rows: Sequence[RunRow]) -> list[str]:
    texts = {f"{split}: {text}" for row in rows for split, text in row.notes.items()}
    return [f"Data, {text}." for text in sorted(texts)]
