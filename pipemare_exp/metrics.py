"""What is a metric: its name, how its values are shown, and which of two values is the better one.

A task names its metric; everything that compares or shows values asks here. Nothing else assumes percent, or that
higher is better.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipemare_exp.errors import UserError, suggest


@dataclass(frozen=True)
class Metric:
    """A metric of a task. The defaults are those of a percentage of which more is better.

    name: its key in metrics.jsonl, result.json and rows. axis: its label on a figure's axis. title: the same in words.
    unit: what follows a value in messages. digits: decimals in tables. lowest, highest: the ends of its range (None:
    open). point: a difference that a reader should see on a figure. margin: how much worse than the synchronous mean
    Table 2's target is [ours]. test: the key of its score in a final test that is on data of its own.
    """

    name: str
    axis: str
    title: str
    unit: str = " %"
    digits: int = 1
    higher_is_better: bool = True
    lowest: float | None = 0.0
    highest: float | None = 100.0
    point: float = 1.0
    margin: float = 1.0
    test: str | None = None

    @property
    def named(self) -> str:
        """The name with its unit, for notes under tables."""
        return f"{self.name} in percent" if self.unit == " %" else self.title

    def better(self, value: float, than: float) -> bool:
        """Whether `value` is strictly better; never where one of the two is NaN."""
        return value > than if self.higher_is_better else value < than

    def best(self, values: Iterable[float]) -> float:
        """The best of at least one value."""
        return max(values) if self.higher_is_better else min(values)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of at least one value."""
        return min(values) if self.higher_is_better else max(values)

    def reaches(self, value: float, target: float) -> bool:
        """Whether `value` is as good as a target."""
        return value >= target if self.higher_is_better else value <= target

    def worsened(self, value: float, by: float) -> float:
        """`value` made worse by so much."""
        return value - by if self.higher_is_better else value + by

    def clipped(self, value: float) -> float:
        """`value`, or the nearer end of the range where it lies outside."""
        value = value if self.lowest is None else max(self.lowest, value)
        return value if self.highest is None else min(self.highest, value)

    def shown(self, value: float, digits: int | None = None) -> str:
        """A value with its unit, as messages have it: `97.36 %`."""
        return f"{value:.{self.digits + 1 if digits is None else digits}f}{self.unit}"


METRICS = {
    one.name: one
    for one in (
        Metric("accuracy", axis="accuracy (%)", title="accuracy in percent"),
        # Of a final test the BLEU of words split as the training data are, which is what the published numbers are.
        Metric("bleu", axis="BLEU", title="BLEU", margin=0.4, test="tokenised_bleu"),
        Metric(
            "bits_per_byte",
            axis="bits per byte",
            title="bits per byte",
            unit=" bits",
            digits=3,
            higher_is_better=False,
            highest=None,
            point=0.02,
            margin=0.02,
            test="bits_per_byte",
        ),
    )
}
"""Every metric by its name."""


def of(name: str) -> Metric:
    """The metric of this name; UserError where there is none."""
    if name not in METRICS:
        raise UserError(f'metric "{name}" is unknown; known: {", ".join(METRICS)}{suggest(name, METRICS)}')
    return METRICS[name]
