"""Which curves does a row of metrics.jsonl give, in every tracker?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of one row: {"train/loss": ..., "train/rate": ..., "epoch": ...}; {} if it has none."""
    kind = row.get("kind")
    if kind not in ("train", "eval"):
        return {}
    place = "train" if kind == "train" else row.get("split", "eval")
    named = {}
    for key, value in row.items():
        if key in ("step", "time") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if key in ("epoch", "seconds"):
            if kind == "train":
                named[key] = float(value)  # one curve each, from the training rows
        else:
            named[f"{place}/{key}"] = float(value)
    return named


def final_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of a result: best and last metric, and `final/...` of the final test."""
    named = {"best": result.get("best"), "last": result.get("last")}
    named |= {f"final/{key}": value for key, value in (result.get("test") or {}).items()}
    return {k: float(v) for k, v in named.items() if isinstance(v, int | float) and math.isfinite(v)}
