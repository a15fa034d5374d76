"""Which curves does a row of metrics.jsonl give, in every tracker?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of one row: {"train/loss": ..., "train/rate": ..., "epoch": ...}; {} if it has none.

    Counts of numbers that are not finite stand under health/, those of evaluations and of a divergence on one curve.
    Of a row that has a value for every stage, the mean and the largest one.
    """
    kind = row.get("kind")
    if kind == "staleness":
        return _over_stages(row)
    if kind not in ("train", "eval", "outcome"):
        return {}
    place = "train" if kind == "train" else row.get("split", "eval")
    named = {}
    for key, value in row.items():
        if key in ("step", "time") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if key in ("epoch", "seconds"):
            if kind == "train":
                named[key] = float(value)  # one curve each, from the training rows
        elif key.startswith("non_finite_"):
            named[f"health/{key}"] = float(value)
        else:
            named[f"{place}/{key}"] = float(value)
    return named


def _over_stages(row: Mapping[str, Any]) -> dict[str, float]:
    named = {}
    for key, values in row.items():
        known = [float(one) for one in values if one is not None] if isinstance(values, list) else []
        if known:
            named[f"staleness/{key}_mean"], named[f"staleness/{key}_max"] = sum(known) / len(known), max(known)
    return named


def final_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of a result: best and last metric, and `final/...` of the final test."""
    named = {"best": result.get("best"), "last": result.get("last")}
    named |= {f"final/{key}": value for key, value in (result.get("test") or {}).items()}
    return {k: float(v) for k, v in named.items() if isinstance(v, int | float) and math.isfinite(v)}
