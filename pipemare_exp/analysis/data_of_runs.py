"""Were runs that stand side by side trained on the same data?

A run of before data were recorded has none in its row; nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipemare_exp.analysis.row import RunRow
from pipemare_exp.experiment.runs.same_data import named


def differing(rows: Iterable[RunRow]) -> list[str]:
    """The names under which `rows` had different data, in the order in which a run reads them."""
    known = [row.data for row in rows if row.data]
    names = dict.fromkeys(name for one in known for name in one)
    return [name for name in names if len({one.get(name) for one in known}) > 1]


def note(rows: Iterable[RunRow]) -> list[str]:
    """A sentence for under a table or figure of `rows`; none where all that is known agrees."""
    names = differing(rows)
    return [f"These runs were trained on different data: {named(names)}."] if names else []
