"""The axes along which studies vary a run: the overrides that set them, and where a row holds the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipemare_exp.analysis.row import RunRow


@dataclass(frozen=True)
class Axis:
    """`study` varies the overrides `keys`; `field`: the row's attribute with the value; `label`: its name.

    `methods`: those that belong on it, where it is not every one that has a value.
    """

    study: str
    keys: tuple[str, ...]
    field: str
    label: str
    log: bool = True
    methods: tuple[str, ...] = ()

    def value(self, row: RunRow) -> float | None:
        """The run's place on this axis; None where it has none (a run without T2 has no D)."""
        return getattr(row, self.field) if not self.methods or row.method in self.methods else None


_T1, _T2, _T3 = "method.lr_rescheduling", "method.discrepancy_correction", "method.sync_warmup"
AXES = {
    "decay": Axis("sensitivity_d", (f"{_T2}.decay",), "decay", "D (T2's decay over the discrepancy)", log=False),
    "k": Axis("sensitivity_k", (f"{_T1}.steps", f"{_T1}.epochs"), "lr_rescheduling_steps", "K (T1's length in steps)"),
    "warmup": Axis(
        "sensitivity_warmup",
        (f"{_T3}.steps", f"{_T3}.epochs"),
        "warmup_steps",
        "M (T3's length in steps)",
        log=False,
    ),
    "rate": Axis("sensitivity_rate", ("optimizer.rate",), "rate", "base learning rate"),
    "stages": Axis("stages", ("pipeline.stages", "pipeline.boundaries", "pipeline.split"), "stages", "stages P"),
    "segment": Axis("recompute", ("pipeline.recompute",), "segment", "segment size S"),
    "delay_scale": Axis(
        "hogwild",
        ("method.delay_scale",),
        "delay_scale",
        "mean delay before truncation\n(times the pipeline's)",
        methods=("hogwild", "hogwild+t1"),
    ),
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
