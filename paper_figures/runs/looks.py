"""What runs have logged of the staleness of their stages: one quantity, averaged over the seeds of a method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paper_figures.runs.groups import by_method
from pipemare_exp.analysis.row import RunRow

DIAGNOSED = "diagnosed runs (diagnostics.at_evaluations=true, or diagnostics.every_steps)"


def diagnosed(rows: Sequence[RunRow]) -> list[RunRow]:
    """The asynchronous runs that were looked at."""
    return [row for row in rows if row.staleness and not row.synchronous]


def numbers(rows: Sequence[RunRow], quantity: str) -> list[dict[str, Any]]:
    """One dict for every method, step and stage: the mean of `quantity` over the seeds that have one, and their number.

    Where no seed has one (a quotient by zero) the mean is None.
    """
    table = []
    for label, group in by_method(rows):
        found: dict[tuple[int, int], list[float]] = {}
        for row in group:
            for one in row.staleness:
                for stage, value in enumerate(one[quantity]):
                    values = found.setdefault((one["step"], stage), [])
                    if value is not None and math.isfinite(value):
                        values.append(value)
        for (step, stage), values in sorted(found.items()):
            mean = sum(values) / len(values) if values else None
            table.append({"method": label, "step": step, "stage": stage, quantity: mean, "n": len(values)})
    return table


def grid(lines: Sequence[dict[str, Any]], quantity: str) -> tuple[list[int], list[int], list[list[float]]]:
    """(steps, stages, values[stage][step]) of one method's `numbers`; NaN where there is none."""
    steps, stages = (sorted({one[key] for one in lines}) for key in ("step", "stage"))
    values = {(one["stage"], one["step"]): one[quantity] for one in lines}
    known = [[values.get((stage, step)) for step in steps] for stage in stages]
    return steps, stages, [[math.nan if one is None else one for one in line] for line in known]
