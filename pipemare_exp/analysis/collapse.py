"""Has a finished run collapsed: is its loss worse by far than that of guessing?"""

from __future__ import annotations

import math

from pipemare_exp import data
from pipemare_exp.analysis.row import RunRow

FACTOR = 2.0
"""A run whose last training loss is above this times the loss of a uniform guess has collapsed. Fixed before any run
was looked at with it: a network that has learnt nothing is near 1, one that still learns below."""


def uniform_loss(row: RunRow) -> float | None:
    """log C, the cross entropy of guessing among the C classes of the task's data, or among as many tokens as the data
    have byte-pair merges; None where neither is known."""
    known = data.DATASETS.get(row.task)
    choices = getattr(known, "classes", None) or int(row.settings.get("data.bpe_merges", 0))
    return math.log(choices) if choices > 1 else None


def collapsed(row: RunRow) -> bool | None:
    """Whether a run that finished has collapsed; None where it did not finish, or its training loss or the loss of a
    guess is not known."""
    guess, last = uniform_loss(row), row.health[-1]["loss"] if row.health else None
    if row.outcome != "finished" or guess is None or last is None:
        return None
    return bool(last > FACTOR * guess)
