"""How numbers are written as CSV: the same rows give the same bytes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(path: Path, table: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV; columns are those of the rows, in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in table for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in table:
            writer.writerow([_cell(row.get(column)) for column in columns])
    return path


def _cell(value: Any) -> Any:
    """Floats with 10 significant digits, None as an empty cell, the rest as it is."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    if hasattr(value, "item"):  # a number of numpy's
        return _cell(value.item())
    return value
