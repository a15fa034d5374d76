"""The axes along which studies vary a run: the overrides that set them, and where a row holds the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paper_figures.rows import RunRow


@dataclass(frozen=True)
class Axis:
    """`keys`: overrides of this axis; `field`: the row's attribute with the value; `label`: its name."""

    name: str
    keys: tuple[str, ...]
    field: str
    label: str
    log: bool = True

    def value(self, row: RunRow) -> float | None:
        """The run's place on this axis; None where it has none (a run without T2 has no D)."""
        return getattr(row, self.field)


AXES = {
    "decay": Axis(
        "decay",
        ("method.discrepancy_correction.decay",),
        "decay",
        "D (T2's decay over the discrepancy)",
        log=False,
    ),
    "k": Axis(
        "k",
        ("method.lr_rescheduling.steps", "method.lr_rescheduling.epochs"),
        "lr_rescheduling_steps",
        "K (T1's length in steps)",
    ),
    "warmup": Axis(
        "warmup",
        ("method.sync_warmup.steps", "method.sync_warmup.epochs"),
        "warmup_steps",
        "M (T3's length in steps)",
        log=False,
    ),
    "rate": Axis("rate", ("optimizer.rate",), "rate", "base learning rate"),
    "stages": Axis("stages", ("pipeline.stages", "pipeline.boundaries"), "stages", "stages P"),
    "segment": Axis("segment", ("pipeline.segment",), "segment", "segment size S"),
    "mean_delay": Axis("mean_delay", ("method.mean_delay",), "mean_delay", "mean delay (steps)"),
}


def points(rows: Sequence[RunRow], axis: Axis) -> dict[str, list[float]]:
    """The distinct values of the axis that each method's runs take, sorted."""
    found: dict[str, set[float]] = {}
    for row in rows:
        value = axis.value(row)
        if value is not None:
            found.setdefault(row.method, set()).add(value)
    return {label: sorted(values) for label, values in found.items()}


def varied(rows: Sequence[RunRow], axis: Axis) -> list[str]:
    """The methods whose runs take at least two values of the axis."""
    return [label for label, values in points(rows, axis).items() if len(values) > 1]
