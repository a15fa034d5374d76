"""How a row of `comparison.compare` is put into words, in the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipemare_exp import metrics
from pipemare_exp.analysis import statistics
from pipemare_exp.experiment.runs.folder import FINAL
from pipemare_exp.experiment.runs.same_data import named

Row = Mapping[str, Any]


def count(row: Row) -> str:
    """`3`, or `3 (+1 interrupted)` where runs have come to no result."""
    rest = [f"{number} {name}" for name, number in row["outcomes"].items() if name not in FINAL]
    return str(row["n"]) + (f" (+{', '.join(rest)})" if rest else "")


def variant(row: Row) -> str:
    """`delay_scale=0.5, rate=0.1` for the variant's settings, each by the last part of its name."""
    parts = [part.rpartition("=") for part in row.get("variant", "").split(", ") if part]
    short = [f"{key.rpartition('.')[2]}{equals}{text}" for key, equals, text in parts]
    whole = len({key.rpartition(".")[2] for key, _, _ in parts}) < len(parts)  # steps of T1 and steps of T3
    return row["variant"] if whole else ", ".join(short)


def value(metric: str | None, mean: float | None, half_width: float | None = None, sign: str = "") -> str:
    """`97.3 ± 0.4`, `97.3` without an interval, `-` without a mean, with the digits of the metric of this name."""
    digits = metrics.of(metric).digits if metric else 1
    return statistics.shown(mean, half_width, digits, sign, none="-")


def mean(row: Row, name: str) -> str:
    """The mean of `best`, `last` or `test` with its interval."""
    return value(row["metric"], row.get(f"{name}_mean"), row.get(f"{name}_ci95"))


def difference(row: Row) -> str:
    """The difference from the synchronous runs with its interval, `-` where there is none."""
    found = row["difference"] or {"mean": None, "ci95": None}
    return value(row["metric"], found["mean"], found["ci95"], sign="+")


def published(row: Row) -> str:
    """`94.8 [D]`, the letters being those of `sources`; `-` where nothing was published."""
    return (
        "; ".join(
            f"{value(row['metric'], one['value'])} [{', '.join(_letters(one['source']))}]"
            for one in row["published"] or ()
        )
        or "-"
    )


def _letters(source: str) -> list[str]:
    return [part.partition(":")[0] for part in source.split("; ")]


def sources(rows: Sequence[Row]) -> list[str]:
    """Every source of the published values of `rows`, written out: `D: a digest of ...`."""
    return sorted({part for row in rows for one in row["published"] or () for part in one["source"].split("; ")})


def published_note(rows: Sequence[Row]) -> str:
    """What keeps the published values of `rows` from being compared with ours as they stand."""
    tested = [found.title for row in rows if row["metric"] and (found := metrics.of(row["metric"])).test]
    ours = f"; compare them with our test {tested[0]}, best and last are on validation" if tested else ""
    return f"Published values are of the paper's own models and lengths{ours}."


def data_notes(rows: Sequence[Row]) -> list[str]:
    """A sentence for each of `rows` whose runs, or the synchronous ones beside them, had different data."""
    return [
        f"{_group(row)}: the runs compared here were trained on different data ({named(row['data_differ'])})."
        for row in rows
        if "data_differ" in row
    ]


def _group(row: Row) -> str:
    return f"{row['method']} ({variant(row)})" if "variant" in row else row["method"]


def metric(rows: Sequence[Row]) -> str:
    """The metric of `rows` in words: `accuracy in percent`."""
    return next((metrics.of(row["metric"]).title for row in rows if row["metric"]), "no metric yet")
