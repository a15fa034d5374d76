"""How a row of `report.compare` is put into words, in the terminal and on the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipemare_exp.analysis.records import ENDED

Row = Mapping[str, Any]


def count(row: Row) -> str:
    """`3`, or `3 (+1 interrupted)` where runs have come to no result."""
    rest = [f"{number} {name}" for name, number in row["outcomes"].items() if name not in ENDED]
    return str(row["n"]) + (f" (+{', '.join(rest)})" if rest else "")


def variant(row: Row) -> str:
    """`delay_scale=0.5, rate=0.1` for the variant's settings, each by the last part of its name."""
    parts = [part.rpartition("=") for part in row.get("variant", "").split(", ") if part]
    short = [f"{key.rpartition('.')[2]}{equals}{text}" for key, equals, text in parts]
    whole = len({key.rpartition(".")[2] for key, _, _ in parts}) < len(parts)  # steps of T1 and steps of T3
    return row["variant"] if whole else ", ".join(short)


def value(mean: float | None, half_width: float | None, form: str = ".1f") -> str:
    """`97.3 ± 0.4`, `97.3` without an interval, `-` without a mean."""
    if mean is None:
        return "-"
    return format(mean, form) + ("" if half_width is None else f" ± {half_width:.1f}")


def published(row: Row) -> str:
    """`94.8 [D]`, the letters being those of `sources`; `-` where nothing was published."""
    shown = [f"{one['value']:.1f} [{', '.join(_letters(one['source']))}]" for one in row["published"] or ()]
    return "; ".join(shown) or "-"


def _letters(source: str) -> list[str]:
    return [part.partition(":")[0] for part in source.split("; ")]


def sources(rows: Sequence[Row]) -> list[str]:
    """Every source of the published values of `rows`, written out: `D: a digest of ...`."""
    return sorted({part for row in rows for one in row["published"] or () for part in one["source"].split("; ")})


def published_note(rows: Sequence[Row]) -> str:
    """What keeps the published values of `rows` from being compared with ours as they stand."""
    bleu = any(row["metric"] == "bleu" for row in rows)
    ours = "; compare them with our test BLEU, best and last are on validation" if bleu else ""
    return f"Published values are of the paper's own models and lengths{ours}."


def metric(rows: Sequence[Row]) -> str:
    """`accuracy in percent` or `BLEU`."""
    name = next((row["metric"] for row in rows if row["metric"]), "metric")
    return "BLEU" if name == "bleu" else f"{name} in percent"
